package unicast

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A way is where routes lead. Routes share it.
type way struct {
	to     switchspec.RouteTo
	note   string
	number uint16   // as in switchspec.Route
	keys   []hopKey // sorted, without duplicates
	route  bifurcation.Route
	ahead  []string // neighbors that are not programmable: what is behind depends on the destination
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

// compile computes table, numbers and problems from what is known, if that has
// changed.
func (t *Table) compile() {
	if !t.dirty {
		return
	}
	t.dirty = false
	t.state = nil
	t.problems = problems{}
	clear(t.cache)
	for _, s := range t.sets {
		t.resolveSet(s)
	}
	t.table = make(map[prefix]*way, len(t.routes)+len(t.adopted)+len(t.hosts)+len(t.own)+len(t.cfg.Prefixes))
	adopted := map[*adopted]*way{}
	for p, a := range t.adopted {
		if adopted[a] == nil {
			adopted[a] = t.adoptedWay(a)
		}
		t.table[p] = adopted[a]
	}
	for p, s := range t.routes {
		t.table[p] = s.way
		if len(s.problems) == 0 && !s.local {
			continue
		}
		local := s.local && t.inOwn(p.netip())
		if local && s.way == unresolvedWay {
			t.table[p] = hostsWay
		}
		for _, cause := range s.problems {
			t.problems.add(cause, p)
		}
		if s.local && !local {
			t.problems.add("the MAC of a next hop at a host port is not known", p)
		}
	}
	for _, p := range t.ports {
		if mac := p.mac(); p.Router.Is4() && unicastMAC(mac) && !t.ownMACs[mac] {
			t.table[single(p.Router)] = t.newWay([]hopKey{{p.Number, p.MAC, mac}})
		}
	}
	for _, p := range t.cfg.Prefixes {
		t.table[toPrefix(p)] = hostsWay
	}
	for a, h := range t.hosts {
		t.table[single(a)] = t.newWay([]hopKey{{h.Port, t.ports[h.Port].MAC, h.MAC}})
	}
	for a := range t.own {
		t.table[single(a)] = ownWay
	}
	t.limit()
	t.number()
}

// limit leaves out routes of the longest prefixes if the switch has no room for all.
func (t *Table) limit() {
	t.lengths = 0
	if over := len(t.table) - MaxRoutes; over > 0 {
		var list []prefix
		for p, s := range t.routes {
			if t.table[p] == s.way {
				list = append(list, p)
			}
		}
		slices.SortFunc(list, func(x, y prefix) int { return cmp.Or(y.bits()-x.bits(), cmp.Compare(y, x)) })
		for _, p := range list[:min(over, len(list))] {
			delete(t.table, p)
			t.problems.add(fmt.Sprintf("the switch has room for %d routes: routes of long prefixes are left out", MaxRoutes), p)
		}
	}
	for p := range t.table {
		t.lengths |= 1 << p.bits()
	}
}

// number gives numbers to the ways that the table holds.
func (t *Table) number() {
	keys := map[hopKey]bool{}
	ways := map[*way]bool{}
	for _, w := range t.table {
		if len(w.keys) > 0 && !ways[w] {
			ways[w] = true
			for _, k := range w.keys {
				keys[k] = true
			}
		}
	}
	if !t.hops.assign(keys) {
		t.problems.add(fmt.Sprintf("all %d numbers of next hops are in use: routes that need more are unreachable", MaxNextHops), none)
	}
	sets := map[string]bool{}
	groups := map[*way]string{}
	for w := range ways {
		numbers := make([]uint16, 0, len(w.keys))
		for _, k := range w.keys {
			n := t.hops.byKey[k]
			if n == 0 {
				break
			}
			numbers = append(numbers, n)
			w.route.Hops = append(w.route.Hops, bifurcation.Hop{NextHop: n, Port: uint32(k.port)})
		}
		switch {
		case len(numbers) < len(w.keys):
			*w = *unresolvedWay
		case len(numbers) == 1:
			w.to, w.number = switchspec.ToNextHop, numbers[0]
		default:
			slices.Sort(numbers)
			groups[w] = ecmpKey(numbers)
			sets[groups[w]] = true
		}
	}
	if !t.ecmp.assign(sets) {
		t.problems.add(fmt.Sprintf("all %d places in ECMP groups are in use: routes that need more are unreachable", MaxECMPMembers), none)
	}
	for w, key := range groups {
		if id := t.ecmp.bySet[key]; id != 0 {
			w.to, w.number = switchspec.ToECMP, id
		} else {
			*w = *unresolvedWay
		}
	}
}

// newWay makes a way of next hops; number goes on with it.
func (t *Table) newWay(keys []hopKey) *way {
	if len(keys) == 0 {
		return unresolvedWay
	}
	slices.SortFunc(keys, hopKey.compare)
	w := &way{keys: slices.Compact(keys)}
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

func (t *Table) resolveSet(s *set) {
	s.local, s.problems = false, nil
	if len(s.hops) == 0 {
		s.way = unreachableWay
		return
	}
	var keys []hopKey
	for _, h := range s.hops {
		keys = t.resolveHop(s, h, keys)
	}
	s.way = t.newWay(keys)
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
	var list []string
	for cause, p := range t.problems {
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
