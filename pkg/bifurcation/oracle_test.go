package bifurcation

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// The oracle sends packets through a fabric that holds a plan's rules, and knows
// nothing of how the rules were made: a switch matches, copies, rewrites and
// forwards as docs/dataplane.md says, and equal-cost choices go every way.

type packet struct {
	dst      netip.Addr
	qpn      uint32
	va       uint64
	rkey     uint32
	rewrites int // in full
}

type network struct {
	t     *Topology
	g     Group
	p     Planned
	rules map[stepKey]*SwitchStep
	used  map[stepKey]bool
	memo  map[flight][]netip.Addr
	open  map[flight]bool
	ahead map[stepKey]brute
	legs  map[leg]map[Switch]bool

	narrow bool // some next hops are left out by a limit, so rules behind may be idle
}

type flight struct {
	at  Switch
	pkt packet
}

const probeRKey, probeVA, probeLen = 7, 0x1000, 0x800

func newNetwork(t *Topology, g Group, p Planned) (*network, error) {
	n := &network{
		t: t, g: g, p: p, rules: map[stepKey]*SwitchStep{}, used: map[stepKey]bool{},
		memo: map[flight][]netip.Addr{}, open: map[flight]bool{}, ahead: map[stepKey]brute{}, legs: map[leg]map[Switch]bool{},
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		key := stepKey{s.At, s.Dst}
		if n.rules[key] != nil {
			return nil, fmt.Errorf("two entries for %v", key)
		}
		if !t.Programmable(s.At) {
			return nil, fmt.Errorf("step at %q, which is not programmable", s.At)
		}
		if !s.Rules.Empty() {
			n.rules[key] = s
		}
	}
	return n, nil
}

// out is a packet that leaves a switch by a port.
type out struct {
	port uint32
	pkt  packet
}

// choices are all the things that a switch may do with a packet, each a list of
// packets that leave.
func (n *network) choices(at Switch, pkt packet) ([][]out, error) {
	s := n.rules[stepKey{at, pkt.dst}]
	if s == nil || pkt.qpn != n.g.ID {
		var all [][]out
		for _, l := range n.t.NextHops(at, pkt.dst) {
			all = append(all, []out{{l.Port, pkt}})
		}
		return all, nil
	}
	n.used[stepKey{at, pkt.dst}] = true
	all := make([][]out, 0, len(s.Rules.PREGroups))
	for _, group := range s.Rules.PREGroups {
		var copies []out
		for _, r := range group {
			c, err := rewriteCopy(s, r, pkt)
			if err != nil {
				return nil, err
			}
			if ahead := n.nextProgrammable(at, c.dst); n.g.Late && n.p.Early == 0 && c.rewrites > 0 && !ahead.direct {
				return nil, fmt.Errorf("%q rewrites the copy to %v in full, and %v are ahead", at, c.dst, ahead)
			}
			copies = append(copies, out{r.Port, c})
		}
		all = append(all, copies)
	}
	return all, nil
}

func rewriteCopy(s *SwitchStep, r Replica, pkt packet) (packet, error) {
	found := 0
	for _, w := range s.Rules.Rewrites {
		if w.RID != r.RID {
			continue
		}
		found++
		if uint32(w.NextHop) != r.Port {
			return pkt, fmt.Errorf("%q rid %d: next hop %d by port %d", s.At, r.RID, w.NextHop, r.Port)
		}
		pkt.dst = w.Dst
		if !w.Last {
			continue
		}
		pkt.qpn = w.QPN
		pkt.rewrites++
		hits := 0
		va, rkey := pkt.va, pkt.rkey
		for _, m := range s.Rules.Translations {
			if m.RID == r.RID && m.RKey == rkey && m.First <= va && va <= m.Last {
				pkt.va, pkt.rkey = va+m.Offset, m.NewRKey
				hits++
			}
		}
		if hits != 1 {
			return pkt, fmt.Errorf("%q rid %d: %d translations", s.At, r.RID, hits)
		}
	}
	if found != 1 {
		return pkt, fmt.Errorf("%q rid %d: %d rewritings", s.At, r.RID, found)
	}
	return pkt, nil
}

// deliver returns the receivers that get a packet that is at a switch. They must be the
// same for all choices.
func (n *network) deliver(at Switch, pkt packet) ([]netip.Addr, error) {
	key := flight{at, pkt}
	if got, ok := n.memo[key]; ok {
		return got, nil
	}
	if n.open[key] {
		return nil, fmt.Errorf("%v is at %q again", pkt, at)
	}
	n.open[key] = true
	defer delete(n.open, key)
	all, err := n.choices(at, pkt)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%v ends at %q", pkt, at)
	}
	var got []netip.Addr
	for i, copies := range all {
		var each [][]netip.Addr
		for _, c := range copies {
			to, err := n.arrive(at, c)
			if err != nil {
				return nil, err
			}
			each = append(each, to)
		}
		if err := n.lazy(at, pkt, each); err != nil {
			return nil, err
		}
		now := slices.Concat(each...)
		slices.SortFunc(now, netip.Addr.Compare)
		if i > 0 && !slices.Equal(got, now) {
			return nil, fmt.Errorf("%v at %q reaches %v or %v", pkt, at, got, now)
		}
		got = now
	}
	n.memo[key] = got
	return got, nil
}

func (n *network) arrive(at Switch, c out) ([]netip.Addr, error) {
	port := n.t.switches[at].ports[c.port-1]
	if port.to != "" {
		return n.deliver(port.to, c.pkt)
	}
	i := slices.IndexFunc(n.g.Receivers, func(r Receiver) bool { return r.Addr == port.host })
	if i < 0 {
		return nil, fmt.Errorf("%v gets to %v", c.pkt, port.host)
	}
	r := n.g.Receivers[i]
	want := packet{r.Addr, r.QPN, r.Regions[0].ReceiverVA + (probeLen - 1), r.Regions[0].ReceiverRKey, 1}
	if c.pkt != want {
		return nil, fmt.Errorf("%v gets %v, want %v", r.Addr, c.pkt, want)
	}
	return []netip.Addr{r.Addr}, nil
}

// lazy checks that receivers whose copies part at a programmable switch have to
// part there, and that those that go on together may. Plans that gave up branches
// are excused from the first.
func (n *network) lazy(at Switch, pkt packet, copies [][]netip.Addr) error {
	if !n.t.Programmable(at) || pkt.qpn != n.g.ID || !n.passedMergePoint(at, pkt.dst) {
		return nil
	}
	for i, a := range copies {
		for _, x := range a {
			nx := n.nextProgrammable(at, x)
			for _, y := range a {
				if ny := n.nextProgrammable(at, y); x != y && (nx.direct || !maps.Equal(nx.next, ny.next)) {
					return fmt.Errorf("%q sends one copy for %v and %v, which go %v and %v", at, x, y, nx, ny)
				}
			}
			for _, y := range slices.Concat(copies[i+1:]...) {
				ny := n.nextProgrammable(at, y)
				if n.p.Early == 0 && !nx.direct && !ny.direct && maps.Equal(nx.next, ny.next) {
					return fmt.Errorf("%q sends two copies for %v and %v, which both go %v", at, x, y, nx)
				}
			}
		}
	}
	return nil
}

// passedMergePoint: before it there is nothing to judge, even at a switch that a
// branch with another representative comes by later.
func (n *network) passedMergePoint(at Switch, dst netip.Addr) bool {
	return slices.ContainsFunc(n.p.Steps, func(s SwitchStep) bool { return s.At == at && s.Dst == dst })
}

type brute struct {
	next   map[Switch]bool
	direct bool
}

func (n *network) nextProgrammable(at Switch, dst netip.Addr) brute {
	key := stepKey{at, dst}
	if b, ok := n.ahead[key]; ok {
		return b
	}
	b := brute{next: map[Switch]bool{}}
	for _, l := range n.t.NextHops(at, dst) {
		switch {
		case l.To == "":
			b.direct = true
		case n.t.Programmable(l.To):
			b.next[l.To] = true
		default:
			behind := n.nextProgrammable(l.To, dst)
			maps.Copy(b.next, behind.next)
			b.direct = b.direct || behind.direct
		}
	}
	n.ahead[key] = b
	return b
}

type leg struct {
	at   Switch
	dst  netip.Addr
	most int
}

// onAll returns the switches that are on all paths from a switch to a host, or to
// where a path ends before. most is the number of switches after which a path has
// been in a loop, and gone wherever the loop leads.
func (n *network) onAll(at Switch, dst netip.Addr, most int) map[Switch]bool {
	key := leg{at, dst, most}
	if n.legs[key] != nil {
		return n.legs[key]
	}
	var all map[Switch]bool
	for _, l := range n.t.NextHops(at, dst) {
		behind := map[Switch]bool{}
		if l.To != "" && most > 0 {
			behind = n.onAll(l.To, dst, most-1)
		}
		if all == nil {
			all = maps.Clone(behind)
		}
		maps.DeleteFunc(all, func(s Switch, _ bool) bool { return !behind[s] })
	}
	if all == nil {
		all = map[Switch]bool{}
	}
	all[at] = true
	n.legs[key] = all
	return all
}

// meetingPoints are the programmable switches on all paths of packets and answers.
func (n *network) meetingPoints() map[Switch]bool {
	var all map[Switch]bool
	both := func(from, to netip.Addr) {
		for _, s := range n.t.Uplinks(from) {
			on := n.onAll(s, to, len(n.t.switches))
			if all == nil {
				all = maps.Clone(on)
			}
			maps.DeleteFunc(all, func(s Switch, _ bool) bool { return !on[s] })
		}
	}
	both(n.g.Source, n.address())
	for _, r := range n.g.Receivers {
		both(r.Addr, n.g.Source)
	}
	maps.DeleteFunc(all, func(s Switch, _ bool) bool { return !n.t.Programmable(s) })
	return all
}

// address is what the sender's packets are addressed to.
func (n *network) address() netip.Addr {
	if n.g.Address.IsValid() {
		return n.g.Address
	}
	return n.g.Receivers[0].Addr
}

// check checks all that a plan promises.
func (n *network) check() error {
	if !n.meetingPoints()[n.p.MergePoint] {
		return fmt.Errorf("not everything meets at %q", n.p.MergePoint)
	}
	var want []netip.Addr
	for i, r := range n.g.Receivers {
		want = append(want, r.Addr)
		m := n.p.Merge.Members[i]
		if m != (MergeMember{uint8(i), r.Addr, n.g.Source, n.g.ID}) || n.p.Merge.Current>>i&1 != 1 {
			return fmt.Errorf("member %d is %v", i, m)
		}
	}
	if n.p.Merge.Source != n.address() {
		return fmt.Errorf("answers come from %v", n.p.Merge.Source)
	}
	slices.SortFunc(want, netip.Addr.Compare)
	sent := packet{dst: n.address(), qpn: n.g.ID, va: probeVA + probeLen - 1, rkey: probeRKey}
	for _, s := range n.t.Uplinks(n.g.Source) {
		got, err := n.deliver(s, sent)
		if err != nil {
			return err
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("reached %v, want %v", got, want)
		}
	}
	for key := range n.rules {
		if !n.used[key] && !n.narrow {
			return fmt.Errorf("no packet uses the rules at %v", key)
		}
	}
	if last := n.p.Steps[len(n.p.Steps)-1]; last.At != n.p.MergePoint {
		return fmt.Errorf("%q is installed last, not the merge point", last.At)
	}
	return nil
}

type wire struct {
	from Switch
	port uint32
}

// trace sends one packet, with choices by chance, and counts it on each link.
func (n *network) trace(rnd *rand.Rand) map[wire]int {
	count := map[wire]int{}
	var send func(at Switch, pkt packet)
	send = func(at Switch, pkt packet) {
		all, _ := n.choices(at, pkt)
		for _, c := range all[rnd.IntN(len(all))] {
			count[wire{at, c.port}]++
			if to := n.t.switches[at].ports[c.port-1].to; to != "" {
				send(to, c.pkt)
			}
		}
	}
	send(n.t.Uplinks(n.g.Source)[0], packet{dst: n.address(), qpn: n.g.ID, va: probeVA, rkey: probeRKey})
	return count
}
