package unicast

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// compile brings the table and its numbers to what is known: where anything may have
// changed all of it, else only the source's routes that have.
func (t *Table) compile() {
	if !t.all && len(t.changed) == 0 {
		return
	}
	next := make(map[prefix]*way, len(t.changed))
	all := t.all || len(t.limits) > 0 || len(t.table)+len(t.changed) > MaxRoutes
	if all {
		t.limits = problems{}
		t.everything(next)
		t.bridge()
	} else {
		for p := range t.changed {
			next[p] = t.best(p)
		}
	}
	t.all = false
	clear(t.changed)
	clear(t.cache)
	fresh := map[*way]bool{} // that have no numbers yet
	var idle []*way
	for p, w := range next {
		old := t.table[p]
		if old == w {
			delete(next, p)
			continue
		}
		if w != nil && len(w.keys) > 0 {
			if w.routes++; w.number == 0 {
				fresh[w] = true
			}
		}
		if old != nil && len(old.keys) > 0 {
			old.routes--
			idle = append(idle, old)
		}
	}
	if all { // those adopted, and those of routes that were left out
		idle = slices.Collect(maps.Values(t.led))
	}
	t.number(fresh, idle)
	for p, w := range next {
		t.place(p, w)
	}
	t.forget(idle)
	if all {
		for n := range t.hops.slots {
			t.release(uint16(n)) //nolint:gosec // 8191 at most
		}
	}
}

// place makes a prefix lead somewhere; nil: nowhere any more.
func (t *Table) place(p prefix, w *way) {
	old := t.table[p]
	route := switchspec.Route{Dst: p.netip()}
	if w == nil {
		delete(t.table, p)
		t.lengths[p.bits()]--
		t.lacks(route.Key(), nil)
		return
	}
	t.table[p] = w
	if old == nil {
		t.lengths[p.bits()]++
	} else if old.to == w.to && old.number == w.number {
		return
	}
	route.To, route.Number = w.to, w.number
	t.lacks(route.Key(), route)
}

// everything finds the ways of all prefixes; nil: there is none any more.
func (t *Table) everything(next map[prefix]*way) {
	for _, s := range t.sets {
		s.resolved = false
	}
	for p := range t.table {
		next[p] = nil
	}
	add := func(p prefix) { next[p] = t.best(p) }
	for p := range t.adopted {
		add(p)
	}
	for p := range t.routes {
		add(p)
	}
	for _, p := range t.routers {
		add(single(p.Router))
	}
	for _, p := range t.cfg.Prefixes {
		add(toPrefix(p))
	}
	for a := range t.hosts {
		add(single(a))
	}
	for a := range t.own {
		add(single(a))
	}
	t.limit(next)
}

// best is the way of a prefix; nil: there is none.
func (t *Table) best(p prefix) *way {
	at := p.netip()
	if h := t.hosts[at.Addr()]; p.bits() == 32 {
		switch {
		case t.own[at.Addr()]:
			return ownWay
		case h != nil:
			return t.way([]hopKey{{h.Port, t.ports[h.Port].MAC, h.MAC}})
		}
	}
	if slices.Contains(t.cfg.Prefixes, at) {
		return hostsWay
	}
	for _, o := range t.routers {
		if mac := o.mac(); p == single(o.Router) && mac.IsStation() && !t.ownMACs[mac] {
			return t.way([]hopKey{{o.Number, o.MAC, mac}})
		}
	}
	if s := t.routes[p]; s != nil {
		if t.resolveSet(s); s.way == unresolvedWay && s.local && t.inOwn(at) {
			return hostsWay
		}
		return s.way
	}
	if a := t.adopted[p]; a != nil {
		return t.adoptedWay(a)
	}
	return nil
}

// adopted is where routes led on the switch that was read back.
type adopted struct {
	keys  []hopKey
	agent bool
}

// adoptedWay is where an adopted route leads now: by the same ports, as far as they are
// usable, to the neighbor that is there now.
func (t *Table) adoptedWay(a *adopted) *way {
	if a.agent {
		return hostsWay
	}
	var keys []hopKey
	for _, k := range a.keys {
		p := t.ports[k.port]
		if p == nil || !p.usable() {
			continue
		}
		k.src = p.MAC
		if m := p.mac(); m != (switchspec.MAC{}) && !p.presumed() {
			k.dst = m
		}
		if k.dst.IsStation() && !t.ownMACs[k.dst] {
			keys = append(keys, k)
		}
	}
	return t.way(keys)
}

// limit leaves out routes of the longest prefixes if the switch has no room for all.
func (t *Table) limit(next map[prefix]*way) {
	over := -MaxRoutes
	for _, w := range next {
		if w != nil {
			over++
		}
	}
	if over <= 0 {
		return
	}
	var list []prefix
	for p, s := range t.routes {
		if next[p] == s.way {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(x, y prefix) int { return cmp.Or(y.bits()-x.bits(), cmp.Compare(y, x)) })
	for _, p := range list[:min(over, len(list))] {
		next[p] = nil
		t.limits.add(fmt.Sprintf("the switch has room for %d routes: routes of long prefixes are left out", MaxRoutes), p)
	}
}

// resolveSet finds the way of a set.
func (t *Table) resolveSet(s *set) {
	if s.resolved && !s.way.gone {
		return
	}
	s.resolved, s.local, s.problems = true, false, nil
	if len(s.hops) == 0 {
		s.way = unreachableWay
		return
	}
	var keys []hopKey
	for _, h := range s.hops {
		keys = t.resolveHop(s, h, keys)
	}
	s.way = t.way(keys)
}

// resolveHop appends what a source's next hop stands for.
func (t *Table) resolveHop(s *set, h routing.NextHop, keys []hopKey) []hopKey {
	if h.Port != "" {
		p := t.byName[h.Port]
		if p == nil {
			s.problem("the switch has no port %q", h.Port)
			return keys
		}
		return t.resolvePort(s, h, p, keys)
	}
	name := t.byAddr[h.Addr]
	switch {
	case name != "" && len(t.portsTo[name]) == 0:
		s.problem("next hop %v is switch %s, to which no port leads", h.Addr, name)
	case name != "":
		for _, p := range t.portsTo[name] {
			keys = t.resolvePort(s, h, p, keys)
		}
	case t.hosts[h.Addr] != nil:
		keys = t.resolvePort(s, h, t.ports[t.hosts[h.Addr].Port], keys)
	case t.own[h.Addr]:
		s.problem("next hop %v is this switch's own address: have the neighbor advertise its own", h.Addr)
	case h.Addr.IsValid() && t.ownPrefix(h.Addr):
		s.problem("next hop %v is a host that is not known yet", h.Addr)
	case h.Addr.IsValid():
		s.problem("next hop %v is none of the switches': list it under the addresses of one, or have the neighbor advertise its own", h.Addr)
	default:
		s.problem("a next hop has neither address nor port")
	}
	return keys
}

// resolvePort appends the next hop at a port, if it is usable.
func (t *Table) resolvePort(s *set, h routing.NextHop, p *port, keys []hopKey) []hopKey {
	if !p.usable() {
		return keys
	}
	mac := p.mac()
	for _, name := range []string{h.Port, p.Name, p.label} {
		if mac == (switchspec.MAC{}) && h.Addr.IsValid() {
			mac = t.neighbors[routing.NeighborKey{Addr: h.Addr, Port: name}]
		}
	}
	if known := t.hosts[h.Addr]; mac == (switchspec.MAC{}) && known != nil && known.Port == p.Number {
		mac = known.MAC
	}
	switch {
	case mac == switchspec.MAC{} && !p.routed():
		s.local = true
	case mac == switchspec.MAC{}:
		s.problem("the MAC of %s at port %d is not known", p.To, p.Number)
	case !mac.IsStation() || t.ownMACs[mac]:
		s.problem("%v at port %d is not a neighbor's MAC", mac, p.Number)
	default:
		keys = append(keys, hopKey{p.Number, p.MAC, mac})
	}
	return keys
}
