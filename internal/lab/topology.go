package lab

import (
	"fmt"
	"net/netip"

	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
)

// Picture is what the lab looks like.
const Picture = `   rack A                      rack B
     h1 ──┐                    ┌── h3
          torA ─── spine ─── torB
     h2 ──┘                    └── h4
`

// A node is a switch. Its port i+1 is at the cable to cables[i].
type node struct {
	name   string
	number byte
	prefix netip.Prefix // of its rack; zero: it has none
	cables []string
}

// A host is attached to its switch.
type host struct {
	name   string
	number byte
	addr   netip.Addr
	tor    string
	rack   uint32
}

var switches = []node{
	{"torA", 1, netip.MustParsePrefix("10.1.0.0/24"), []string{"h1", "h2", "spine"}},
	{"torB", 2, netip.MustParsePrefix("10.2.0.0/24"), []string{"h3", "h4", "spine"}},
	{"spine", 3, netip.Prefix{}, []string{"torA", "torB"}},
}

var hosts = []host{
	{"h1", 11, netip.MustParseAddr("10.1.0.11"), "torA", 1},
	{"h2", 12, netip.MustParseAddr("10.1.0.12"), "torA", 1},
	{"h3", 21, netip.MustParseAddr("10.2.0.11"), "torB", 2},
	{"h4", 22, netip.MustParseAddr("10.2.0.12"), "torB", 2},
}

func switchOf(name string) *node {
	for i := range switches {
		if switches[i].name == name {
			return &switches[i]
		}
	}
	return nil
}

func hostOf(name string) *host {
	for i := range hosts {
		if hosts[i].name == name {
			return &hosts[i]
		}
	}
	return nil
}

// port is the number of the port at the cable to a neighbor.
func (n *node) port(to string) uint16 {
	for i, c := range n.cables {
		if c == to {
			return uint16(i + 1)
		}
	}
	panic(fmt.Sprintf("lab: there is no cable from %s to %s", n.name, to))
}

// mac is the address of one of the switch's ports; of port 0 that of the router.
func (n *node) mac(port uint16) switchspec.MAC {
	return switchspec.MAC{0x02, 0xfe, 0, n.number, byte(port >> 8), byte(port)}
}

func (n *node) address() netip.Addr { return netip.AddrFrom4([4]byte{10, 255, 0, n.number}) }
func (n *node) gateway() netip.Addr { return n.prefix.Addr().Next() }
func (n *node) asn() uint32         { return 4200000000 + uint32(n.number) }

// cable is the tunnel of a switch's port: this end and the other.
func (p place) cable(n *node, port uint16) (local, remote netip.AddrPort) {
	to := n.cables[port-1]
	local = p.at(n.number, tunnelPort+port)
	if h := hostOf(to); h != nil {
		return local, p.at(h.number, tunnelPort)
	}
	far := switchOf(to)
	return local, p.at(far.number, tunnelPort+far.port(n.name))
}

// window is how many packets a queue pair has under way. The buffers of three times
// so many, of the longest packets, are what a socket gets from Linux by default; with
// larger windows cables would lose packets.
const window = 16

// device is the host's RDMA device, as package qp opens it.
func (p place) device(h *host) string {
	tor := switchOf(h.tor)
	remote, local := p.cable(tor, tor.port(h.name))
	return fmt.Sprintf("softroce:%v,gw=%v,mac=%v,tunnel=%v-%v?window=%d", netip.PrefixFrom(h.addr, tor.prefix.Bits()), tor.gateway(),
		switchspec.MAC(framelink.DefaultMAC(h.addr)), local, remote, window)
}
