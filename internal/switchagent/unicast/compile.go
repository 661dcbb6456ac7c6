package unicast

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A way is where routes lead. All by the same next hops share it.
type way struct {
	to     switchspec.RouteTo
	note   string
	number uint16   // as in switchspec.Route
	keys   []hopKey // sorted, without duplicates
	route  bifurcation.Route
	ahead  []string // neighbors that are not programmable: what is behind depends on the destination
	routes int      // that lead there
	gone   bool     // it was forgotten: none led there any more
}

// Notes say what a route without next hops is.
const (
	NoteOwn         = "own"         // an address of the switch
	NoteHosts       = "hosts"       // a prefix of hosts: asked for by ARP
	NoteUnresolved  = "unresolved"  // no next hop is usable, or its MAC is known
	NoteUnreachable = "unreachable" // says the source
)

var (
	ownWay         = &way{to: switchspec.ToAgent, note: NoteOwn}
	hostsWay       = &way{to: switchspec.ToAgent, note: NoteHosts}
	unresolvedWay  = &way{to: switchspec.ToNowhere, note: NoteUnresolved}
	unreachableWay = &way{to: switchspec.ToNowhere, note: NoteUnreachable}
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
		if mac := o.mac(); p == single(o.Router) && unicastMAC(mac) && !t.ownMACs[mac] {
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

// number gives numbers to fresh ways. If there are too few, idle ways lose theirs first.
func (t *Table) number(fresh map[*way]bool, idle []*way) {
	keys := t.unnumbered(fresh)
	if len(t.hops.byKey)+len(keys) > MaxNextHops {
		t.forget(idle)
		keys = t.unnumbered(fresh)
	}
	for i, k := range keys {
		if len(t.hops.byKey) == MaxNextHops {
			t.limits.add(fmt.Sprintf("all %d numbers of next hops are in use: routes that need more are unreachable", MaxNextHops), none)
			keys = keys[:i]
			break
		}
		t.hop(t.hops.give(k), k)
	}
	groups := map[string]*way{}
	members := 0
	for w := range fresh {
		numbers := t.hops.of(w.keys)
		if len(numbers) < len(w.keys) {
			t.fail(w)
			continue
		}
		t.lead(w, numbers)
		if w.to, w.number = switchspec.ToNextHop, numbers[0]; len(numbers) > 1 {
			groups[ecmpKey(numbers)] = w
			members += len(numbers)
		}
	}
	if t.ecmp.members+members > MaxECMPMembers {
		t.forget(idle)
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		if id := t.ecmp.free(len(key) / 2); id != 0 {
			t.group(groups[key], id, key)
			continue
		}
		t.fail(groups[key])
		t.limits.add(fmt.Sprintf("all %d places in ECMP groups are in use: routes that need more are unreachable", MaxECMPMembers), none)
	}
	for _, k := range keys {
		t.release(t.hops.byKey[k]) // of a way that failed
	}
}

// unnumbered are the ways' next hops that have no number, in order.
func (t *Table) unnumbered(fresh map[*way]bool) []hopKey {
	var keys []hopKey
	for w := range fresh {
		for _, k := range w.keys {
			if t.hops.byKey[k] == 0 {
				keys = append(keys, k)
			}
		}
	}
	slices.SortFunc(keys, hopKey.compare)
	return slices.Compact(keys)
}

// lead takes a way's next hops into use.
func (t *Table) lead(w *way, numbers []uint16) {
	for i, n := range numbers {
		t.hops.slots[n].ways++
		w.route.Hops = append(w.route.Hops, bifurcation.Hop{NextHop: n, Port: uint32(w.keys[i].port)})
	}
}

// group makes a way one by an ECMP group, of the numbers that the key says.
func (t *Table) group(w *way, id uint16, key string) {
	w.to, w.number = switchspec.ToECMP, id
	t.ecmp.put(id, len(w.keys))
	e := switchspec.ECMPGroup{ID: id, Hops: ecmpHops(key)}
	t.lacks(e.Key(), e)
}

// hop has the switch get a next hop under its number.
func (t *Table) hop(n uint16, k hopKey) {
	hop, neighbor := switchspec.NextHop{ID: n, Port: k.port}, switchspec.Neighbor{NextHop: n, Src: k.src, Dst: k.dst}
	t.lacks(hop.Key(), hop)
	t.lacks(neighbor.Key(), neighbor)
}

// fail makes a way unresolved for which there are no numbers.
func (t *Table) fail(w *way) {
	delete(t.led, wayKey(w.keys))
	t.leadNot(w)
	*w = *unresolvedWay
}

// forget drops those of the ways to which no route leads, and their numbers.
func (t *Table) forget(idle []*way) {
	for _, w := range idle {
		if w.routes > 0 || w.gone || len(w.keys) == 0 {
			continue
		}
		w.gone = true
		delete(t.led, wayKey(w.keys))
		if w.to == switchspec.ToECMP {
			t.ecmp.drop(w.number, len(w.keys))
			t.lacks(switchspec.ECMPGroup{ID: w.number}.Key(), nil)
		}
		t.leadNot(w)
	}
}

func (t *Table) leadNot(w *way) {
	for _, h := range w.route.Hops {
		t.hops.slots[h.NextHop].ways--
		t.release(h.NextHop)
	}
}

// release frees a next hop's number if nothing needs it, and reports whether it did.
func (t *Table) release(number uint16) bool {
	if !t.hops.take(number) {
		return false
	}
	t.lacks(switchspec.NextHop{ID: number}.Key(), nil)
	t.lacks(switchspec.Neighbor{NextHop: number}.Key(), nil)
	return true
}

func wayKey(keys []hopKey) string {
	b := make([]byte, 0, 14*len(keys))
	for _, k := range keys {
		b = append(append(binary.BigEndian.AppendUint16(b, k.port), k.src[:]...), k.dst[:]...)
	}
	return string(b)
}

// way is that by these next hops. It has no number before a route leads there.
func (t *Table) way(keys []hopKey) *way {
	if len(keys) == 0 {
		return unresolvedWay
	}
	slices.SortFunc(keys, hopKey.compare)
	w := &way{keys: slices.Compact(keys)}
	key := wayKey(w.keys)
	if known := t.led[key]; known != nil {
		return known
	}
	t.led[key] = w
	for _, k := range w.keys {
		to := t.ports[k.port].To
		switch {
		case to == "":
			w.route.Direct = true
		case t.switches[to].Programmable:
			w.route.Next = append(w.route.Next, bifurcation.Switch(to))
		case !slices.Contains(w.ahead, to):
			w.ahead = append(w.ahead, to)
		}
	}
	slices.Sort(w.route.Next)
	w.route.Next = slices.Compact(w.route.Next)
	return w
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
	case h.Addr.IsValid() && t.ownPrefix(h.Addr):
		s.problem("next hop %v is a host that is not known yet", h.Addr)
	case h.Addr.IsValid():
		s.problem("next hop %v is none of the switches'", h.Addr)
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
	case !unicastMAC(mac) || t.ownMACs[mac]:
		s.problem("%v at port %d is not a neighbor's MAC", mac, p.Number)
	default:
		keys = append(keys, hopKey{p.Number, p.MAC, mac})
	}
	return keys
}

// usable says whether packets may leave by the port.
func (p *port) usable() bool { return !p.routed() || !p.Hello || p.state == linkUp || p.presumed() }

// presumed says whether a link is taken to be as it was on the switch that was
// adopted.
func (p *port) presumed() bool {
	return p.Hello && p.state == linkUnknown && p.assumed != switchspec.MAC{}
}

// mac is the neighboring switch's, as far as the link tells; else zero.
func (p *port) mac() switchspec.MAC {
	for _, m := range []switchspec.MAC{p.peer, p.assumed, p.PeerMAC} {
		if p.routed() && m != (switchspec.MAC{}) {
			return m
		}
	}
	return switchspec.MAC{}
}

func (t *Table) inOwn(p netip.Prefix) bool {
	return slices.ContainsFunc(t.cfg.Prefixes, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
}

func (t *Table) ownPrefix(a netip.Addr) bool { return t.inOwn(netip.PrefixFrom(a, a.BitLen())) }

func (s *set) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// problems counts routes by what is wrong with them.
type problems map[string]problem

type problem struct {
	routes int
	first  prefix
}

// none stands for a prefix where the problem is not of a single route.
const none = ^prefix(0)

// maxProblems is how many Problems lists.
const maxProblems = 50

func (p problems) add(cause string, at prefix) {
	q, ok := p[cause]
	if !ok || at < q.first {
		q.first = at
	}
	q.routes++
	p[cause] = q
}

// Problems describes what keeps routes from being as the source has them, except
// for links that are down. It is empty if all is well.
func (t *Table) Problems() []string {
	t.compile()
	all := problems{}
	maps.Copy(all, t.limits)
	for p, s := range t.routes {
		t.resolveSet(s)
		for _, cause := range s.problems {
			all.add(cause, p)
		}
		if s.local && !t.inOwn(p.netip()) {
			all.add("the MAC of a next hop at a host port is not known", p)
		}
	}
	var list []string
	for cause, p := range all {
		switch {
		case p.first == none:
			list = append(list, cause)
		case p.routes == 1:
			list = append(list, fmt.Sprintf("%s (route %v)", cause, p.first.netip()))
		default:
			list = append(list, fmt.Sprintf("%s (%d routes, %v for one)", cause, p.routes, p.first.netip()))
		}
	}
	slices.Sort(list)
	if more := len(list) - maxProblems; more > 0 {
		list = append(list[:maxProblems], fmt.Sprintf("and %d more", more))
	}
	return list
}
