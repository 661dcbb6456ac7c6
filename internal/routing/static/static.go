// Package static computes routes from a topology file: the fabric's switches,
// hosts and links in YAML. It serves fabrics without a routing protocol, and
// planning and tests, for which it knows the whole fabric at once.
//
// [Parse] reads the file strictly; [Topology] answers questions about the
// fabric with any set of links down; [Topology.Source] is one switch's view of
// it as a routing.Source. Paths are the shortest by number of links, all of
// them where there are several; hosts pass nothing on. The package reads no
// clock and starts no goroutine.
//
// A topology looks like this. Ports are data-plane port numbers. Addresses and
// MACs of link ends default to those of the switch or host.
//
//	switches:
//	  - {name: leaf1, address: 10.255.0.1, mac: "02:00:00:01:00:00", prefixes: [10.1.0.0/24]}
//	  - {name: spine1, address: 10.255.1.1, programmable: false}
//	hosts:
//	  - {name: h1, address: 10.1.0.11, mac: "02:00:00:00:01:0b"}
//	links:
//	  - {a: {node: h1}, b: {node: leaf1, port: 1}}
//	  - {a: {node: leaf1, port: 9, address: 10.0.0.0}, b: {node: spine1, port: 1, address: 10.0.0.1}}
package static

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/mcrdma/mcrdma/internal/routing"
)

// ErrUnknown is returned for names that the topology does not have.
var ErrUnknown = errors.New("static: not in the topology")

// A Topology is a fabric. It does not change and is safe for concurrent use.
type Topology struct {
	nodes    map[string]*node
	switches []*node
	hosts    []*node
	links    []link
}

type node struct {
	name         string
	id           int // position among all switches and hosts
	line         int
	isSwitch     bool
	programmable bool
	addr         netip.Addr // invalid: none
	mac          routing.MAC
	prefixes     []netip.Prefix
	links        []int          // positions in Topology.links
	fabric       []int          // those of them that lead to switches
	ports        map[uint32]int // port → line of its link
}

type end struct {
	node *node
	port uint32
	addr netip.Addr
	mac  routing.MAC
}

type link struct{ a, b end }

// from returns l's near and far end as n sees them.
func (l link) from(n *node) (near, far end) {
	if l.a.node == n {
		return l.a, l.b
	}
	return l.b, l.a
}

// A Switch describes a switch of the topology.
type Switch struct {
	Name         string
	Programmable bool
	Addr         netip.Addr // invalid if the file gives none
	MAC          routing.MAC
	Prefixes     []netip.Prefix
}

// A Host describes a host of the topology.
type Host struct {
	Name string
	Addr netip.Addr
	MAC  routing.MAC
}

// An End is one end of a link.
type End struct {
	Node string
	Port uint32 // 0 at hosts
	Addr netip.Addr
	MAC  routing.MAC
}

// A Link joins two nodes. Its position in [Topology.Links] identifies it.
type Link struct{ A, B End }

// A Hop is a next hop and the node it leads to.
type Hop struct {
	routing.NextHop
	Node string // a switch, or the destination host
	Link int
}

// Down is a set of links that are down, by their position.
type Down map[int]bool

// Switches lists the switches in the order of the file.
func (t *Topology) Switches() []Switch {
	var list []Switch
	for _, n := range t.switches {
		list = append(list, Switch{n.name, n.programmable, n.addr, n.mac, slices.Clone(n.prefixes)})
	}
	return list
}

// Hosts lists the hosts in the order of the file.
func (t *Topology) Hosts() []Host {
	var list []Host
	for _, n := range t.hosts {
		list = append(list, Host{n.name, n.addr, n.mac})
	}
	return list
}

// Links lists the links in the order of the file.
func (t *Topology) Links() []Link {
	var list []Link
	for _, l := range t.links {
		list = append(list, Link{End{l.a.node.name, l.a.port, l.a.addr, l.a.mac}, End{l.b.node.name, l.b.port, l.b.addr, l.b.mac}})
	}
	return list
}

// LinkAt returns the link at a switch's port.
func (t *Topology) LinkAt(sw string, port uint32) (int, error) {
	if n := t.nodes[sw]; n != nil && n.isSwitch {
		for _, id := range n.links {
			if near, _ := t.links[id].from(n); near.port == port {
				return id, nil
			}
		}
	}
	return 0, fmt.Errorf("%w: port %d of switch %q", ErrUnknown, port, sw)
}

func (t *Topology) aSwitch(name string) (*node, error) {
	if n := t.nodes[name]; n != nil && n.isSwitch {
		return n, nil
	}
	return nil, fmt.Errorf("%w: switch %q", ErrUnknown, name)
}

// Hops returns the equal-cost next hops of a switch towards an address of a
// host or switch, or an address in a switch's prefix, in the order of
// [routing.NextHop.Compare]. They are empty if the address is the switch's
// own or cannot be reached.
func (t *Topology) Hops(sw string, dst netip.Addr, down Down) ([]Hop, error) {
	n, err := t.aSwitch(sw)
	if err != nil {
		return nil, err
	}
	owner := t.owner(dst.Unmap())
	if owner == nil {
		return nil, fmt.Errorf("%w: address %v", ErrUnknown, dst)
	}
	return t.hops(n, t.distances(owner, down), down), nil
}

// owner finds the node that has an address: itself, or in a prefix.
func (t *Topology) owner(a netip.Addr) *node {
	var holder *node
	for _, n := range t.nodes {
		if n.addr == a {
			return n
		}
		if slices.ContainsFunc(n.prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			holder = n // prefixes do not overlap: there is one at most
		}
	}
	return holder
}

// distances counts the links to dst from every node that dst's paths lead
// through or to, by node.id; -1 is unreachable. Paths lead through switches
// only, so hosts other than dst are left out.
func (t *Topology) distances(dst *node, down Down) []int {
	dist := slices.Repeat([]int{-1}, len(t.switches)+len(t.hosts))
	dist[dst.id] = 0
	for queue := []*node{dst}; len(queue) > 0; queue = queue[1:] {
		n := queue[0]
		for _, id := range n.fabric {
			if _, far := t.links[id].from(n); !down[id] && dist[far.node.id] < 0 {
				dist[far.node.id] = dist[n.id] + 1
				queue = append(queue, far.node)
			}
		}
	}
	return dist
}

// hops lists n's links that lead nearer.
func (t *Topology) hops(n *node, dist []int, down Down) []Hop {
	mine := dist[n.id]
	if mine <= 0 {
		return nil
	}
	var list []Hop
	for _, id := range n.links {
		near, far := t.links[id].from(n)
		if dist[far.node.id] != mine-1 || down[id] {
			continue
		}
		list = append(list, Hop{routing.NextHop{Addr: far.addr, Port: strconv.Itoa(int(near.port))}, far.node.name, id})
	}
	slices.SortFunc(list, func(a, b Hop) int { return a.Compare(b.NextHop) })
	return list
}

// Routes returns a switch's routes: to every prefix of other switches, and to
// the address of every host and other switch unless the prefix it lies in
// leads the same way. What cannot be reached is there with an empty set.
func (t *Topology) Routes(sw string, down Down) ([]routing.Route, error) {
	n, err := t.aSwitch(sw)
	if err != nil {
		return nil, err
	}
	var table routing.Table
	set := func(p netip.Prefix, hops routing.Hops) {
		if r, ok := table.Lookup(p.Addr()); !ok || !r.Hops.Equal(hops) {
			table.Apply(routing.Delta{Routes: []routing.Route{{Prefix: p, Hops: hops}}})
		}
	}
	sets := make(map[*node]routing.Hops)
	for _, dst := range slices.Concat(t.switches, t.hosts) {
		var hops []routing.NextHop
		for _, h := range t.hops(n, t.distances(dst, down), down) {
			hops = append(hops, h.NextHop)
		}
		sets[dst] = routing.NewHops(hops...)
		if dst != n {
			for _, p := range dst.prefixes {
				set(p, sets[dst])
			}
		}
	}
	for _, dst := range slices.Concat(t.switches, t.hosts) {
		if dst != n && dst.addr.IsValid() {
			set(netip.PrefixFrom(dst.addr, dst.addr.BitLen()), sets[dst])
		}
	}
	return table.Routes(), nil
}

// Neighbors returns a switch's neighbors over links that are up, as far as
// their MAC addresses are in the file.
func (t *Topology) Neighbors(sw string, down Down) ([]routing.Neighbor, error) {
	n, err := t.aSwitch(sw)
	if err != nil {
		return nil, err
	}
	var list []routing.Neighbor
	for _, id := range n.links {
		near, far := t.links[id].from(n)
		if !down[id] && far.mac != (routing.MAC{}) {
			list = append(list, routing.Neighbor{
				NeighborKey: routing.NeighborKey{Addr: far.addr, Port: strconv.Itoa(int(near.port))}, MAC: far.mac})
		}
	}
	return list, nil
}

// A Source is one switch's view of a topology, as a [routing.Source].
type Source struct {
	routing.Table
	t  *Topology
	sw string

	mu   sync.Mutex
	down Down
}

// Source returns the view of a switch, with all links up.
func (t *Topology) Source(sw string) (*Source, error) {
	s := &Source{t: t, sw: sw, down: Down{}}
	return s, s.update()
}

// SetLink tells that a link anywhere in the fabric went down or came up.
func (s *Source) SetLink(id int, up bool) error {
	if id < 0 || id >= len(s.t.links) {
		return fmt.Errorf("%w: link %d", ErrUnknown, id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down[id] == !up {
		return nil
	}
	s.down[id] = !up
	return s.update()
}

func (s *Source) update() error {
	routes, err := s.t.Routes(s.sw, s.down)
	if err != nil {
		return err
	}
	neighbors, err := s.t.Neighbors(s.sw, s.down)
	if err != nil {
		return err
	}
	s.Replace(routes, neighbors)
	return nil
}
