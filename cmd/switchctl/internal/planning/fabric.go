// Package planning is switchctl's view of groups on a whole fabric, before any switch
// is touched: a topology file as a bifurcation.Fabric, groups as people write them, and
// what planning them comes to. It is pure but for reading files, and writes nothing.
//
// It is the only place where a topology and the bifurcation meet, as only planning
// sees a fabric at once; an agent knows its own switch, and asks the others.
//
// It may import internal/routing/static, pkg/bifurcation and yaml.
package planning

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/internal/routing/static"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A Fabric is a topology with some links down. It remembers routes as they are asked
// for, so not even readers may share it.
type Fabric struct {
	topology *static.Topology
	links    []static.Link
	down     static.Down
	hosts    map[string]static.Host // by name
	named    map[netip.Addr]string
	switches map[string]bool // whether they are programmable
	uplinks  map[string][]bifurcation.Switch
	routes   map[route][]bifurcation.Link
}

type route struct {
	at  bifurcation.Switch
	dst netip.Addr
}

// NewFabric returns a topology as a fabric.
func NewFabric(t *static.Topology) *Fabric {
	f := &Fabric{topology: t, links: t.Links(), down: static.Down{}, hosts: map[string]static.Host{},
		named: map[netip.Addr]string{}, switches: map[string]bool{}}
	for _, h := range t.Hosts() {
		f.hosts[h.Name], f.named[h.Addr] = h, h.Name
	}
	for _, s := range t.Switches() {
		f.switches[s.Name] = s.Programmable
	}
	f.forget()
	return f
}

// forget drops what depends on the links that are down.
func (f *Fabric) forget() {
	f.routes, f.uplinks = map[route][]bifurcation.Link{}, map[string][]bifurcation.Switch{}
	for i, l := range f.links {
		for _, e := range [][2]static.End{{l.A, l.B}, {l.B, l.A}} {
			if _, host := f.hosts[e[0].Node]; host && !f.down[i] {
				f.uplinks[e[0].Node] = append(f.uplinks[e[0].Node], bifurcation.Switch(e[1].Node))
			}
		}
	}
}

// LinkDown takes links down: "A:B" all those between two nodes, "SWITCH:PORT" the one
// at a port. A link that is down already stays so.
func (f *Fabric) LinkDown(what string) error {
	a, b, ok := strings.Cut(what, ":")
	if !ok || a == "" || b == "" {
		return fmt.Errorf("%q is not A:B, two nodes of the topology, or SWITCH:PORT", what)
	}
	for _, name := range []string{a, b} {
		if f.isNode(name) {
			continue
		}
		if port, err := strconv.ParseUint(name, 10, 32); err == nil && name == b {
			id, err := f.topology.LinkAt(a, uint32(port))
			if err != nil {
				return fmt.Errorf("%q: there is no link at port %d of switch %s", what, port, a)
			}
			f.down[id] = true
			f.forget()
			return nil
		}
		return fmt.Errorf("%q: the topology has no switch or host %q", what, name)
	}
	found := false
	for i, l := range f.links {
		if l.A.Node == a && l.B.Node == b || l.A.Node == b && l.B.Node == a {
			f.down[i], found = true, true
		}
	}
	if !found {
		return fmt.Errorf("%q: there is no link between %s and %s", what, a, b)
	}
	f.forget()
	return nil
}

func (f *Fabric) isNode(name string) bool {
	_, isSwitch := f.switches[name]
	_, isHost := f.hosts[name]
	return isSwitch || isHost
}

// Host finds a host by name or address.
func (f *Fabric) Host(s string) (netip.Addr, error) {
	if h, ok := f.hosts[s]; ok {
		return h.Addr, nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		if _, ok := f.switches[s]; ok {
			return netip.Addr{}, fmt.Errorf("%q is a switch; members of groups are hosts", s)
		}
		return netip.Addr{}, fmt.Errorf("%q is neither a host of the topology nor an address", s)
	}
	if _, ok := f.named[a]; !ok {
		return netip.Addr{}, fmt.Errorf("the topology has no host with address %v; add it under \"hosts\", with a link to its switch", a)
	}
	return a, nil
}

// Name is what people call an address: the host's name, or the address itself.
func (f *Fabric) Name(a netip.Addr) string {
	if name, ok := f.named[a]; ok {
		return name
	}
	return a.String()
}

// Peer names the node at the other end of a switch's port.
func (f *Fabric) Peer(at bifurcation.Switch, port uint32) string {
	id, err := f.topology.LinkAt(string(at), port)
	if err != nil {
		return ""
	}
	if l := f.links[id]; l.A.Node != string(at) || l.A.Port != port {
		return l.A.Node
	}
	return f.links[id].B.Node
}

// Uplinks implements bifurcation.Fabric.
func (f *Fabric) Uplinks(host netip.Addr) []bifurcation.Switch {
	name, ok := f.named[host]
	if !ok {
		return nil
	}
	return f.uplinks[name]
}

// Programmable implements bifurcation.Fabric.
func (f *Fabric) Programmable(at bifurcation.Switch) bool { return f.switches[string(at)] }

// NextHops implements bifurcation.Fabric. Next hops are numbered as their ports are.
func (f *Fabric) NextHops(at bifurcation.Switch, dst netip.Addr) []bifurcation.Link {
	key := route{at, dst}
	if links, ok := f.routes[key]; ok {
		return links
	}
	hops, _ := f.topology.Hops(string(at), dst, f.down) // an address of no host has none
	links := make([]bifurcation.Link, 0, len(hops))
	for _, h := range hops {
		port, _ := strconv.ParseUint(h.Port, 10, 16) // the topology's ports are up to 510
		l := bifurcation.Link{Hop: bifurcation.Hop{NextHop: uint16(port), Port: uint32(port)}, To: bifurcation.Switch(h.Node)}
		if _, ok := f.switches[h.Node]; !ok {
			l.To = ""
		}
		links = append(links, l)
	}
	f.routes[key] = links
	return links
}
