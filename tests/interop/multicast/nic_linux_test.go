//go:build interop

package multicast

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// A nic is a host's interface that a guest has: the host has no address at it any
// more, and its frames are read and written here.
type nic struct {
	space   *lab.Space
	name    string
	addr    netip.Prefix
	mac     net.HardwareAddr
	gateway netip.Addr // not valid: no default route leads there
	port    *ports.Interface
}

// take takes an interface away from a host.
func take(s *lab.Space, name string) (*nic, error) {
	n := &nic{space: s, name: name}
	if name == "eth0" {
		if err := s.TakeXDP(name); err != nil { // for the host, too, when it has the interface back
			return nil, err
		}
	}
	if err := s.Do(n.take); err != nil {
		return nil, fmt.Errorf("%s of %s: %w", name, s.Name, err)
	}
	return n, nil
}

func (n *nic) take() error {
	link, err := netlink.LinkByName(n.name)
	if err != nil {
		return err
	}
	n.mac = link.Attrs().HardwareAddr
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil || len(addrs) != 1 {
		return errors.Join(err, fmt.Errorf("it has %d addresses, and not one", len(addrs)))
	}
	if n.addr, err = netip.ParsePrefix(addrs[0].IPNet.String()); err != nil {
		return err
	}
	routes, err := netlink.RouteList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, r := range routes {
		if gw, ok := netip.AddrFromSlice(r.Gw); ok {
			n.gateway = gw.Unmap()
		}
	}
	if err := netlink.AddrDel(link, &addrs[0]); err != nil {
		return err
	}
	n.port, err = ports.OpenInterface(n.name, ports.Options{Buffer: 4 << 20})
	return err
}

// giveBack returns the interface to the host.
func (n *nic) giveBack() error {
	err := n.Close()
	if errors.Is(err, net.ErrClosed) { // with the cable
		err = nil
	}
	return errors.Join(err, n.space.Do(func() error {
		link, err := netlink.LinkByName(n.name)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(n.addr.String())
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); err != nil || !n.gateway.IsValid() {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: n.gateway.AsSlice()})
	}))
}

// Read reads one frame.
func (n *nic) Read(b []byte) (int, error) {
	room := [][]byte{b[:0]}
	if _, err := n.port.Recv(room); err != nil {
		return 0, err
	}
	return len(room[0]), nil
}

// Write sends one frame. As on any network, it may be lost.
func (n *nic) Write(b []byte) (int, error) {
	n.port.Send([][]byte{b})
	return len(b), nil
}

func (n *nic) Close() error { return n.port.Close() }
