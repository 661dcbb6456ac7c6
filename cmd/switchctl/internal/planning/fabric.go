// Package planning plans groups on a whole fabric for switchctl, without changing a switch: a
// topology file as a bifurcation.Fabric, groups as users write them, and the resulting plan. It is
// pure except for reading files, and writes nothing.
//
// Only this package combines a topology with the bifurcation, because only planning sees the whole
// fabric; an agent knows its own switch, and asks the others.
package planning

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/internal/topology"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A Fabric is a topology with some links down. It caches routes, so it is not safe for concurrent
// use.
type Fabric struct {
	topology *topology.Topology
	down     topology.Down
	named    map[netip.Addr]string // hosts
	routes   map[route][]bifurcation.Link
}

type route struct {
	at  bifurcation.Switch
	dst netip.Addr
}

// NewFabric returns a topology as a fabric.
func NewFabric(t *topology.Topology) *Fabric {
	f := &Fabric{topology: t, down: topology.Down{}, named: map[netip.Addr]string{}, routes: map[route][]bifurcation.Link{}}
	for _, h := range t.Hosts {
		f.named[h.Address] = h.Name
	}
	return f
}

// LinkDown takes links down: all links between two nodes for "A:B", the link at a port for
// "SWITCH:PORT". A link that is already down stays down.
func (f *Fabric) LinkDown(what string) error {
	a, b, ok := strings.Cut(what, ":")
	if !ok || a == "" || b == "" {
		return fmt.Errorf("%q is not A:B, two nodes of the topology, or SWITCH:PORT", what)
	}
	clear(f.routes)
	near := f.topology.Node(a)
	if near == nil {
		return fmt.Errorf("%q: the topology has no switch or host %q", what, a)
	}
	if f.topology.Node(b) == nil {
		port, err := strconv.ParseUint(b, 10, 32)
		if err != nil {
			return fmt.Errorf("%q: the topology has no switch or host %q", what, b)
		}
		p, err := f.topology.At(a, uint32(port))
		if err != nil {
			return fmt.Errorf("%q: there is no link at port %d of switch %s", what, port, a)
		}
		f.down[p.Link] = true
		return nil
	}
	found := false
	for _, p := range near.Ports {
		if p.To.Name == b {
			f.down[p.Link], found = true, true
		}
	}
	if !found {
		return fmt.Errorf("%q: there is no link between %s and %s", what, a, b)
	}
	return nil
}

// Host finds a host by name or address.
func (f *Fabric) Host(s string) (netip.Addr, error) {
	n := f.topology.Node(s)
	if n != nil && n.Switch == nil {
		return n.Address, nil
	}
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil && n != nil:
		return a, fmt.Errorf("%q is a switch; members of groups are hosts", s)
	case err != nil:
		return a, fmt.Errorf("%q is neither a host of the topology nor an address", s)
	case f.named[a] == "":
		return a, fmt.Errorf("the topology has no host with address %v; add it under \"hosts\", with a link to its switch", a)
	}
	return a, nil
}

// Name returns the host's name for an address, or otherwise the address itself.
func (f *Fabric) Name(a netip.Addr) string {
	if name, ok := f.named[a]; ok {
		return name
	}
	return a.String()
}

// Peer returns the node at the other end of a switch's port.
func (f *Fabric) Peer(at bifurcation.Switch, port uint32) string {
	p, _ := f.topology.At(string(at), port) // no link leads to no node
	return p.Far.Node
}

// Uplinks implements bifurcation.Fabric.
func (f *Fabric) Uplinks(host netip.Addr) (list []bifurcation.Switch) {
	if name, ok := f.named[host]; ok {
		for _, p := range f.topology.Node(name).Ports {
			if !f.down[p.Link] {
				list = append(list, bifurcation.Switch(p.To.Name))
			}
		}
	}
	return list
}

// Programmable implements bifurcation.Fabric.
func (f *Fabric) Programmable(at bifurcation.Switch) bool {
	n, err := f.topology.Switch(string(at))
	return err == nil && n.Switch.Programmable
}

// NextHops implements bifurcation.Fabric. Next hops have the numbers of their ports.
func (f *Fabric) NextHops(at bifurcation.Switch, dst netip.Addr) []bifurcation.Link {
	key := route{at, dst}
	if links, ok := f.routes[key]; ok {
		return links
	}
	hops, _ := f.topology.Hops(string(at), dst, f.down) // an address without a host has none
	links := make([]bifurcation.Link, 0, len(hops))
	for _, h := range hops {
		port, _ := strconv.ParseUint(h.Port, 10, 16) // the topology's ports are up to 509
		l := bifurcation.Link{Hop: bifurcation.Hop{NextHop: uint16(port), Port: uint32(port)}}
		if f.topology.Node(h.Node).Switch != nil {
			l.To = bifurcation.Switch(h.Node)
		}
		links = append(links, l)
	}
	f.routes[key] = links
	return links
}
