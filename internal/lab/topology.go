package lab

import (
	"cmp"
	_ "embed"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/internal/topology"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
)

//go:embed racks.yaml
var racks []byte

// Racks is the topology of a lab that has none of its own.
func Racks() (*topology.Topology, error) { return topology.Parse(racks, "racks.yaml") }

// A network is where a lab is: 127.x.y.0/24, in which each switch and each
// host has an address of its own, and how far its ports are shifted.
type network struct {
	net   netip.Addr
	shift uint16
}

// addr is the address of the switch or host with this number.
func (p network) addr(number byte) netip.Addr {
	a := p.net.As4()
	a[3] = number
	return netip.AddrFrom4(a)
}

// Picture is what a lab looks like that has no topology of its own.
const Picture = `   rack A                      rack B
     h1 ──┐                    ┌── h3
          torA ─── spine ─── torB
     h2 ──┘                    └── h4
`

// A plan is the topology, and where on the loopback network its nodes are.
type plan struct {
	*topology.Topology
	network
}

// newPlan checks what labs need beyond what any topology has.
func newPlan(t *topology.Topology) (plan, error) {
	if len(t.Nodes()) > 250 {
		return plan{}, fmt.Errorf("%d switches and hosts: a lab has 250 at most", len(t.Nodes()))
	}
	for _, s := range t.Switches {
		if !s.Address.Is4() {
			return plan{}, fmt.Errorf("switch %s has no IPv4 address", s.Name)
		}
		if len(t.Switches) > 1 && !slices.ContainsFunc(t.Node(s.Name).Ports, func(p topology.Port) bool { return p.To.Switch != nil }) {
			return plan{}, fmt.Errorf("switch %s has no link to another switch", s.Name)
		}
	}
	for _, h := range t.Hosts {
		ports := t.Node(h.Name).Ports
		if len(ports) != 1 || !slices.ContainsFunc(ports[0].To.Switch.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is4() && p.Contains(h.Address) }) {
			return plan{}, fmt.Errorf("host %s: want one link, to a switch in one of whose prefixes %v is", h.Name, h.Address)
		}
		if prefixOf(ports[0].To, h.Address).Addr().Next() == h.Address {
			return plan{}, fmt.Errorf("host %s: %v is the first address of its prefix, which is the gateway", h.Name, h.Address)
		}
	}
	return plan{Topology: t}, nil
}

// switches are those of the topology.
func (p plan) switches() []*topology.Node { return p.Nodes()[:len(p.Switches)] }

// hosts are likewise the hosts.
func (p plan) hosts() []*topology.Node { return p.Nodes()[len(p.Switches):] }

// number tells nodes apart. It is a switch's device and its part of the AS number, and the
// last byte of a node's address in the network.
func (p plan) number(n *topology.Node) byte { return byte(1 + slices.Index(p.Nodes(), n)) }

func (p plan) addr(n *topology.Node) netip.Addr { return p.network.addr(p.number(n)) }

func (p plan) at(n *topology.Node, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(p.addr(n), port+p.shift)
}

func (p plan) asn(n *topology.Node) uint32 { return 4200000000 + uint32(p.number(n)) }

// tor is a host's switch, as the host sees its port there.
func tor(host *topology.Node) topology.Port { return host.Ports[0] }

// cable is the tunnel of a port: this end and the other.
func (p plan) cable(n *topology.Node, port topology.Port) (local, remote netip.AddrPort) {
	return p.at(n, tunnelPort+uint16(port.Near.Port)), p.at(port.To, tunnelPort+uint16(port.Far.Port))
}

// mac is a switch's address as a router, which is that of its ports, too.
func (p plan) mac(sw *topology.Node) switchspec.MAC {
	return cmp.Or(sw.MAC, switchspec.MAC{0x02, 0xfe, 0, p.number(sw), 0, 0})
}

// window is how many packets a queue pair has under way. The buffers of three times
// so many, of the longest packets, are what a socket gets from Linux by default; with
// larger windows cables would lose packets.
const window = 16

// prefixOf is the prefix of a switch that has an address.
func prefixOf(sw *topology.Node, a netip.Addr) netip.Prefix {
	return sw.Switch.Prefixes[slices.IndexFunc(sw.Switch.Prefixes, func(x netip.Prefix) bool { return x.Contains(a) })]
}

// device is the host's RDMA device, as package qp opens it.
func (p plan) device(h *topology.Node) string {
	prefix := prefixOf(tor(h).To, h.Address)
	mac := cmp.Or(h.MAC, framelink.DefaultMAC(h.Address))
	local, remote := p.cable(h, tor(h))
	return fmt.Sprintf("softroce:%v,gw=%v,mac=%v,tunnel=%v-%v?window=%d", netip.PrefixFrom(h.Address, prefix.Bits()), prefix.Addr().Next(),
		mac, local, remote, window)
}
