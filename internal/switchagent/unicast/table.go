package unicast

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A Table is the unicast state of one switch. It is for one goroutine at a time.
type Table struct {
	cfg Config
	surroundings
	sources
	hops *hopNumbers
	ecmp ecmpNumbers
	compiled
}

// surroundings are the switch's ports, and what is behind them.
type surroundings struct {
	ports    map[uint16]*port
	byName   map[string]*port   // by number in decimal, too
	portsTo  map[string][]*port // by the neighbor; "" has hosts
	routers  []*port
	switches map[string]*Switch
	byAddr   map[netip.Addr]string // of switches
	own      map[netip.Addr]bool
	ownMACs  map[switchspec.MAC]bool
}

// sources are what routing and hosts have said.
type sources struct {
	routes    map[prefix]*set
	sets      map[string]*set
	neighbors map[routing.NeighborKey]switchspec.MAC
	hosts     map[netip.Addr]*host
	refused   map[Host]refusal
	adopted   map[prefix]*adopted // until settled
	settled   bool
}

// compiled is what was made of the above; see compile.
type compiled struct {
	all     bool            // anything may have changed
	changed map[prefix]bool // else: the source's routes that have
	version uint64
	ways    uint64
	table   map[prefix]*way
	led     map[string]*way                  // ways with next hops, by these
	lengths [33]int                          // how many prefixes of n bits there are
	bridged map[switchspec.MAC]uint16        // ports of stations
	cache   map[netip.Addr]bifurcation.Route // see lookAhead
	limits  problems                         // what there is no room for
	lacking map[switchspec.Key]*Change       // on the switch
}

// A prefix is an IPv4 prefix: the address in the upper bits, the length in
// the lowest 8.
type prefix uint64

func toPrefix(p netip.Prefix) prefix {
	a := p.Addr().As4()
	return prefix(binary.BigEndian.Uint32(a[:]))<<8 | prefix(p.Bits()) //nolint:gosec // 0 to 32
}

func single(a netip.Addr) prefix { return toPrefix(netip.PrefixFrom(a, 32)) }

func (p prefix) bits() int { return int(p & 0xff) }

func (p prefix) netip() netip.Prefix {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(p>>8)) //nolint:gosec // of 40 bits
	return netip.PrefixFrom(netip.AddrFrom4(a), p.bits())
}

// A set is a set of next hops as a source tells it. Routes share it.
type set struct {
	key      string
	hops     routing.Hops
	routes   int
	resolved bool // the rest is known
	way      *way
	local    bool // a hop waits for a host that is not known yet
	problems []string
}

// touch says that any way may have changed.
func (t *Table) touch() {
	t.all = true
	t.rise()
}

func (t *Table) rise() {
	t.version++
	t.ways++
}

func (t *Table) inOwn(p netip.Prefix) bool {
	return slices.ContainsFunc(t.cfg.Prefixes, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
}

func (t *Table) ownPrefix(a netip.Addr) bool { return t.inOwn(netip.PrefixFrom(a, a.BitLen())) }

// edge says whether an address is the first or last of one of the switch's prefixes
// of more than two: the network's own, or the broadcast address.
func (t *Table) edge(a netip.Addr) bool {
	for _, p := range t.cfg.Prefixes {
		if p.Bits() < 31 && p.Contains(a) {
			b := a.As4()
			rest := binary.BigEndian.Uint32(b[:]) << p.Bits() >> p.Bits()
			if rest == 0 || rest == ^uint32(0)>>p.Bits() {
				return true
			}
		}
	}
	return false
}

// Version rises with every change that Changes or Resolve could show.
func (t *Table) Version() uint64 { return t.version }

// WaysVersion rises with every change that Resolve could show. Version rises
// with each of those, and also when a number that is no longer needed is freed.
func (t *Table) WaysVersion() uint64 { return t.ways }

// Routes takes a change from the source. Routes that are not IPv4 are ignored.
func (t *Table) Routes(d routing.Delta) {
	changed, all := false, false
	set := func(p prefix, yes bool) {
		if yes {
			t.changed[p], changed = true, true
		}
	}
	for _, r := range d.Routes {
		if p, ok := normal(r.Prefix); ok {
			set(p, t.setRoute(p, r.Hops))
		}
	}
	for _, w := range d.Withdrawn {
		if p, ok := normal(w); ok {
			_, kept := t.adopted[p]
			delete(t.adopted, p)
			set(p, t.dropRoute(p) || kept)
		}
	}
	for _, n := range d.Neighbors {
		all = t.setNeighbor(n.NeighborKey, n.MAC) || all
	}
	for _, k := range d.Lost {
		all = t.setNeighbor(k, switchspec.MAC{}) || all
	}
	t.all = t.all || all
	if changed || all {
		t.rise()
	}
}

func normal(p netip.Prefix) (prefix, bool) {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	if !p.IsValid() || !p.Addr().Is4() {
		return 0, false
	}
	return toPrefix(p.Masked()), true
}

func (t *Table) setRoute(p prefix, hops routing.Hops) (changed bool) {
	own := make([]routing.NextHop, len(hops))
	for i, h := range hops {
		h.Addr = h.Addr.Unmap()
		if !h.Addr.IsValid() && p.bits() == 32 {
			h.Addr = p.netip().Addr() // on the link: the neighbor is the destination
		}
		own[i] = h
	}
	hops = routing.NewHops(own...)
	var buf []byte
	for _, h := range hops {
		buf = append(append(append(h.Addr.AppendTo(buf), '%'), h.Port...), 0)
	}
	old := t.routes[p]
	if old != nil && old.key == string(buf) {
		return false
	}
	s := t.sets[string(buf)]
	if s == nil {
		s = &set{key: string(buf), hops: hops}
		t.sets[s.key] = s
	}
	s.routes++
	if old != nil {
		t.leave(old)
	}
	t.routes[p] = s
	return true
}

func (t *Table) dropRoute(p prefix) (changed bool) {
	s := t.routes[p]
	if s == nil {
		return false
	}
	t.leave(s)
	delete(t.routes, p)
	return true
}

func (t *Table) leave(s *set) {
	if s.routes--; s.routes == 0 {
		delete(t.sets, s.key)
	}
}

func (t *Table) setNeighbor(k routing.NeighborKey, m switchspec.MAC) (changed bool) {
	k.Addr = k.Addr.Unmap()
	if t.neighbors[k] == m {
		return false
	}
	if t.neighbors == nil {
		t.neighbors = map[routing.NeighborKey]switchspec.MAC{}
	}
	if t.neighbors[k] = m; m == (switchspec.MAC{}) {
		delete(t.neighbors, k)
	}
	return true
}

// Settled says that the source has reported all that it knew when it began. Until
// then what was adopted stays: routes that the source does not have, unless it withdrew
// them; next hops' numbers; and links with hellos count as they were until Link reports
// them.
func (t *Table) Settled() {
	if t.settled {
		return
	}
	t.settled, t.adopted = true, nil
	t.hops.settle()
	for _, p := range t.ports {
		p.assumed = switchspec.MAC{}
	}
	t.touch()
}

// Link says that the link at a port with hellos came up, with this neighbor's MAC,
// or went down. It is ignored for other ports.
func (t *Table) Link(number uint16, up bool, peer switchspec.MAC) {
	p := t.ports[number]
	if p == nil || !p.routed() || !p.Hello {
		return
	}
	state := linkDown
	if up {
		state = linkUp
	} else {
		peer = switchspec.MAC{}
	}
	if p.state != state || p.peer != peer {
		p.state, p.peer, p.assumed = state, peer, switchspec.MAC{}
		t.touch()
	}
}
