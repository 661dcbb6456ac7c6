package figures

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/mcrdma/mcrdma/internal/topology"
)

// A builder makes a topology. Ports are numbered in the order in which links are added.
type builder struct {
	topology.Topology
	ports map[string]uint32
}

func (b *builder) sw(name string, programmable bool) {
	n := len(b.Switches) + 1
	b.Switches = append(b.Switches, topology.Switch{Name: name, Programmable: programmable,
		Address: netip.AddrFrom4([4]byte{10, 255, byte(n >> 8), byte(n)})})
}

// rack adds a switch with hosts of these names.
func (b *builder) rack(name string, programmable bool, hosts ...string) {
	b.sw(name, programmable)
	s := &b.Switches[len(b.Switches)-1]
	n := byte(len(b.Switches))
	s.Prefixes = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, n, 0, 0}), 16)}
	for i, h := range hosts {
		b.Hosts = append(b.Hosts, topology.Host{Name: h, Address: netip.AddrFrom4([4]byte{10, n, byte(i / 250), byte(i%250 + 1)})})
		b.link(h, name)
	}
}

func (b *builder) link(a, z string) {
	end := func(node string) topology.End {
		e := topology.End{Node: node}
		for _, s := range b.Switches {
			if s.Name == node {
				b.ports[node]++
				e.Port = b.ports[node]
			}
		}
		return e
	}
	b.Links = append(b.Links, topology.Link{A: end(a), B: end(z)})
}

// build makes a topology of what do adds, by way of its file format.
func build(do func(b *builder)) (*topology.Topology, error) {
	b := &builder{ports: map[string]uint32{}}
	do(b)
	data, err := json.Marshal(b.Topology)
	if err != nil {
		return nil, err
	}
	return topology.Parse(data, "fabric of a paper")
}

// Testbed is that of MC-RDMA, figure 3: eight hosts at four programmable switches, each with so many
// links to one switch that only routes. The text tells that A1 and B1 are in one rack (their path is
// the short one in figure 7), and that A1, D1 and A2 are in three (figure 4).
func Testbed(uplinks int) (*topology.Topology, error) {
	return build(func(b *builder) {
		for i, hosts := range [][]string{{"A1", "B1"}, {"C1", "D1"}, {"A2", "B2"}, {"C2", "D2"}} {
			b.rack(fmt.Sprintf("tor%d", i+1), true, hosts...)
		}
		b.sw("leaf", false)
		for i := range 4 {
			for range uplinks {
				b.link(fmt.Sprintf("tor%d", i+1), "leaf")
			}
		}
	})
}

// FatTree is the fabric of MC-RDMA, figures 8 and 9: six pods with nine hosts each, three switches above
// the racks of each pod, and nine cores. The paper says that it is a fat tree with k = 6, which has three
// racks of three hosts in a pod, and that each rack has nine hosts, which makes one rack of a pod: racks
// is 3 or 1. With full, all switches are programmable; else those of racks are.
func FatTree(racks int, full bool) (*topology.Topology, error) {
	return build(func(b *builder) {
		host := 0
		for pod := range 6 {
			for r := range racks {
				var hosts []string
				for range 9 / racks {
					hosts = append(hosts, fmt.Sprintf("h%d", host))
					host++
				}
				b.rack(fmt.Sprintf("tor%d-%d", pod, r), true, hosts...)
			}
		}
		for pod := range 6 {
			for a := range 3 {
				b.sw(fmt.Sprintf("agg%d-%d", pod, a), full)
				for r := range racks {
					b.link(fmt.Sprintf("tor%d-%d", pod, r), fmt.Sprintf("agg%d-%d", pod, a))
				}
			}
		}
		for a := range 3 {
			for c := range 3 {
				core := fmt.Sprintf("core%d-%d", a, c)
				b.sw(core, full)
				for pod := range 6 {
					b.link(fmt.Sprintf("agg%d-%d", pod, a), core)
				}
			}
		}
	})
}

// Racks is hosts h0 and on in racks of so many below programmable switches, each with one link to a switch that is
// programmable, too: its rate says how much hosts of different racks get.
func Racks(racks, hosts int) (*topology.Topology, error) {
	return build(func(b *builder) {
		for r := range racks {
			var names []string
			for i := range hosts {
				names = append(names, fmt.Sprintf("h%d", r*hosts+i))
			}
			b.rack(fmt.Sprintf("tor%d", r), true, names...)
		}
		b.sw("spine", true)
		for r := range racks {
			b.link(fmt.Sprintf("tor%d", r), "spine")
		}
	})
}

// Star is so many hosts, h0 and on, at one programmable switch: RDMC's clusters, whose fabrics the paper
// takes to be without bottlenecks. A v1model switch has 509 ports.
func Star(hosts int) (*topology.Topology, error) {
	return build(func(b *builder) {
		var names []string
		for i := range hosts {
			names = append(names, fmt.Sprintf("h%d", i))
		}
		b.rack("tor", true, names...)
	})
}
