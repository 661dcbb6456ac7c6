package unicast

import (
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// Adopt takes over from a switch that was read back: the numbers of next hops and
// ECMP groups; hosts, which are asked soon whether they are still there; and until
// Settled the routes, and the MACs of neighbors whose hellos were not heard yet.
// What the table already knows takes precedence. A source's route to one address of an
// own prefix, to a known host's port and MAC, is taken for that of a host, until ARP
// confirms it or gets no answer.
func (t *Table) Adopt(s *switchspec.State) {
	keys := map[uint16]hopKey{}
	for n := range switchspec.Of[switchspec.NextHop](s) {
		e, _ := s.Find(switchspec.Neighbor{NextHop: n.ID}.Key())
		if m, ok := e.(switchspec.Neighbor); ok {
			keys[n.ID] = hopKey{n.Port, m.Src, m.Dst}
			if t.hops.adopt(n.ID, keys[n.ID]) {
				t.hop(n.ID, keys[n.ID])
			}
		}
	}
	if t.settled {
		t.hops.settle()
	}
	groups := map[uint16]*adopted{}
	for g := range switchspec.Of[switchspec.ECMPGroup](s) {
		groups[g.ID] = t.adoptGroup(g, keys)
	}
	hops := map[uint16]*adopted{}
	for n, k := range keys {
		hops[n] = &adopted{keys: []hopKey{k}}
	}
	nowhere, agent := &adopted{}, &adopted{agent: true}
	for r := range switchspec.Of[switchspec.Route](s) {
		var a *adopted
		switch r.To {
		case switchspec.ToNowhere:
			a = nowhere
		case switchspec.ToNextHop:
			a = hops[r.Number]
		case switchspec.ToECMP:
			a = groups[r.Number]
		case switchspec.ToAgent:
			if t.inOwn(r.Dst) { // else the switch's address, once
				a = agent
			}
		}
		if a == nil || t.adoptHost(s, r.Dst, a) || t.settled {
			continue
		}
		if t.adopted == nil {
			t.adopted = map[prefix]*adopted{}
		}
		t.adopted[toPrefix(r.Dst)] = a
		for _, k := range a.keys {
			p := t.ports[k.port]
			if p != nil && p.routed() && p.Hello && p.state == linkUnknown {
				p.assumed = k.dst
			}
		}
	}
	for e := range s.All() {
		if k := e.Key(); t.lacking[k] == nil {
			t.lacks(k, nil) // unless compile finds that it is wanted
		}
	}
	t.touch()
}

func (t *Table) adoptGroup(g switchspec.ECMPGroup, keys map[uint16]hopKey) *adopted {
	a := &adopted{}
	var numbers []uint16
	for _, h := range g.Hops {
		k, ok := keys[h.NextHop]
		if !ok {
			return nil
		}
		a.keys = append(a.keys, k)
		if h.Weight == 1 {
			numbers = append(numbers, h.NextHop)
		}
	}
	if len(numbers) < len(g.Hops) || len(numbers) < 2 || g.ID > MaxECMPGroups || t.ecmp.used[g.ID] || t.ecmp.members+len(numbers) > MaxECMPMembers {
		return a
	}
	for i, n := range numbers {
		if t.hops.byKey[a.keys[i]] != n || t.ports[a.keys[i].port] == nil {
			return a
		}
	}
	if w := t.way(slices.Clone(a.keys)); w.number == 0 {
		last := max(t.ecmp.last, g.ID)
		t.lead(w, t.hops.of(w.keys))
		t.group(w, g.ID, ecmpKey(numbers))
		t.ecmp.last = last
	}
	return a
}

// adoptHost takes a route for a host, if it is one's.
func (t *Table) adoptHost(s *switchspec.State, p netip.Prefix, a *adopted) bool {
	if p.Bits() != 32 || len(a.keys) != 1 || !t.ownPrefix(p.Addr()) {
		return false
	}
	h := Host{Addr: p.Addr(), MAC: a.keys[0].dst, Port: a.keys[0].port}
	if e, ok := s.Find(switchspec.BridgeMAC{MAC: h.MAC}.Key()); !ok || e.(switchspec.BridgeMAC).Port != h.Port {
		return false // a route of the source's
	}
	if why, _ := t.unfit(h); why == "" && t.hosts[h.Addr] == nil {
		t.hosts[h.Addr] = &host{Host: h}
	}
	return true
}
