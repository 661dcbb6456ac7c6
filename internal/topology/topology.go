// Package topology describes a fabric: its switches, hosts and links, and the YAML file that
// defines them. Static routing, "switchctl plan", "cmd-daemon init", the labs and Mininet use the
// same file; see docs/topology.md.
//
//	switches:
//	  - {name: leaf1, address: 10.255.0.1, mac: "02:00:00:01:00:00", prefixes: [10.1.0.0/24]}
//	  - {name: spine1, address: 10.255.1.1, programmable: false}
//	hosts:
//	  - {name: h1, address: 10.1.0.11, mac: "02:00:00:00:01:0b"}
//	links:
//	  - {a: {node: h1}, b: {node: leaf1, port: 1}}
//	  - {a: {node: leaf1, port: 9, address: 10.0.0.0}, b: {node: spine1, port: 1, address: 10.0.0.1}}
//
// [Parse] is strict. [Topology.Hops] returns all shortest paths by number of links; hosts do not
// forward.
package topology

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/mcrdma/mcrdma/internal/routing"
)

// ErrUnknown is returned for names that the topology does not have.
var ErrUnknown = errors.New("not in the topology")

// A Topology is a fabric. What Parse returns does not change and is safe for concurrent use. The
// tags are the names of the fields in the file, which may also be JSON, as encoding/json writes it.
type Topology struct {
	Switches []Switch `yaml:"switches" json:"switches"`
	Hosts    []Host   `yaml:"hosts" json:"hosts,omitzero"`
	Links    []Link   `yaml:"links" json:"links,omitzero"`

	nodes map[string]*Node
	order []*Node // switches, then hosts
}

// A Switch is a switch of the topology.
type Switch struct {
	Name         string         `yaml:"name" json:"name"`
	Programmable bool           `yaml:"programmable" json:"programmable" absent:"true"`
	Address      netip.Addr     `yaml:"address" json:"address,omitzero"` // invalid if not in the file
	MAC          routing.MAC    `yaml:"mac" json:"mac,omitzero"`
	Prefixes     []netip.Prefix `yaml:"prefixes" json:"prefixes,omitzero"` // of its hosts
}

// A Host is a host of the topology.
type Host struct {
	Name    string      `yaml:"name" json:"name"`
	Address netip.Addr  `yaml:"address" json:"address,omitzero"`
	MAC     routing.MAC `yaml:"mac" json:"mac,omitzero"`
}

// A Link connects two nodes. Its index in [Topology.Links] identifies it.
type Link struct {
	A End `yaml:"a" json:"a"`
	B End `yaml:"b" json:"b"`
}

// An End is one end of a link. Its addresses default to those of the node.
type End struct {
	Node    string      `yaml:"node" json:"node"`
	Port    uint32      `yaml:"port" json:"port,omitzero"` // 0 at hosts
	Address netip.Addr  `yaml:"address" json:"address,omitzero"`
	MAC     routing.MAC `yaml:"mac" json:"mac,omitzero"`
}

// A Node is a switch or a host, with its ports.
type Node struct {
	Name    string
	Switch  *Switch // nil for a host
	Address netip.Addr
	MAC     routing.MAC
	Ports   []Port // in the order of the file
	id      int    // index in Topology.order
}

// Local returns the addresses at which a switch's agent and its P4Runtime server listen if the
// whole fabric runs on this machine: two loopback ports, unique among up to 5000 nodes.
func (n *Node) Local() (agent, p4runtime netip.AddrPort) {
	port := 9560 + 10*uint16(n.id%5000) //nolint:gosec // below 60000
	lo := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	return netip.AddrPortFrom(lo, port), netip.AddrPortFrom(lo, port-1)
}

// A Port is an end of a link, from its node's point of view.
type Port struct {
	Link      int
	Near, Far End
	To        *Node // of Far
}

// A Hop is a next hop and the node that it leads to.
type Hop struct {
	routing.NextHop
	Node string // a switch, or the destination host
	Link int
}

// Down is a set of links that are down, by index.
type Down map[int]bool

// Node finds a switch or host by name, or returns nil.
func (t *Topology) Node(name string) *Node { return t.nodes[name] }

// Nodes returns the switches, then the hosts, in the order of the file.
func (t *Topology) Nodes() []*Node { return t.order }

// Switch finds a switch by name.
func (t *Topology) Switch(name string) (*Node, error) {
	if n := t.nodes[name]; n != nil && n.Switch != nil {
		return n, nil
	}
	return nil, fmt.Errorf("%w: switch %q", ErrUnknown, name)
}

// At returns what is connected to a switch's port.
func (t *Topology) At(sw string, port uint32) (Port, error) {
	if n, err := t.Switch(sw); err == nil {
		for _, p := range n.Ports {
			if p.Near.Port == port {
				return p, nil
			}
		}
	}
	return Port{}, fmt.Errorf("%w: port %d of switch %q", ErrUnknown, port, sw)
}

// Hops returns a switch's equal-cost next hops toward the address of a host or switch, or an
// address in a switch's prefix, in the order of [routing.NextHop.Compare]. There are none if the
// address is the switch's own or cannot be reached.
func (t *Topology) Hops(sw string, dst netip.Addr, down Down) ([]Hop, error) {
	n, err := t.Switch(sw)
	if err != nil {
		return nil, err
	}
	owner := t.owner(dst.Unmap())
	if owner == nil {
		return nil, fmt.Errorf("%w: address %v", ErrUnknown, dst)
	}
	return t.HopsTo(n, owner, down), nil
}

// owner finds the node that has an address, itself or in a prefix.
func (t *Topology) owner(a netip.Addr) *Node {
	var holder *Node
	for _, n := range t.order {
		if n.Address == a {
			return n
		}
		if n.Switch != nil && contains(n.Switch, a) {
			holder = n // prefixes do not overlap, so there is at most one
		}
	}
	return holder
}

// HopsTo returns the same as Hops, for a node.
func (t *Topology) HopsTo(n, dst *Node, down Down) []Hop {
	dist := t.distances(dst, down)
	mine := dist[n.id]
	if mine <= 0 {
		return nil
	}
	var list []Hop
	for _, p := range n.Ports {
		if dist[p.To.id] == mine-1 && !down[p.Link] {
			list = append(list, Hop{routing.NextHop{Addr: p.Far.Address, Port: strconv.Itoa(int(p.Near.Port))}, p.Far.Node, p.Link})
		}
	}
	slices.SortFunc(list, func(a, b Hop) int { return a.Compare(b.NextHop) })
	return list
}

// distances returns the number of links to dst from every node, by Node.id; -1 means unreachable.
// Paths lead through switches only, so hosts other than dst are left out.
func (t *Topology) distances(dst *Node, down Down) []int {
	dist := slices.Repeat([]int{-1}, len(t.order))
	dist[dst.id] = 0
	for queue := []*Node{dst}; len(queue) > 0; queue = queue[1:] {
		n := queue[0]
		for _, p := range n.Ports {
			if far := p.To; far.Switch != nil && !down[p.Link] && dist[far.id] < 0 {
				dist[far.id] = dist[n.id] + 1
				queue = append(queue, far)
			}
		}
	}
	return dist
}
