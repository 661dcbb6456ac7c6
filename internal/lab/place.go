package lab

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
)

// Ports, of which some are shifted if others of this machine use them.
const (
	p4runtimePort = 9559
	agentPort     = 9560
	daemonPort    = 9550
	bgpPort       = 1790
	tunnelPort    = 7000 // of port 0, at switches and at hosts
)

// A place is where a lab is: a network 127.x.y.0/24, in which each switch and each
// host has an address of its own, and how far its ports are shifted.
type place struct {
	net   netip.Addr
	shift uint16
}

// addr is the address of the switch or host with this number.
func (p place) addr(number byte) netip.Addr {
	a := p.net.As4()
	a[3] = number
	return netip.AddrFrom4(a)
}

func (p place) at(number byte, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(p.addr(number), port+p.shift)
}

func (p place) String() string { return netip.PrefixFrom(p.net, 24).String() }

// findPlace returns a place that is not in use. Another lab's place has other
// addresses; ports of processes that listen on all addresses are avoided.
func findPlace() (place, error) {
	var p place
	var err error
	for try := range uint16(20) {
		p = place{net: netip.AddrFrom4([4]byte{127, byte(64 + rand.N(128)), byte(rand.N(256)), 0}), shift: try * 50}
		if err = p.free(); err == nil {
			return p, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return p, fmt.Errorf("finding a place on the loopback network: %w", err)
}

// free says whether all addresses of the place can be listened at, by doing so.
func (p place) free() error {
	var held []io.Closer
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	tcp := func(a netip.AddrPort) error {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
		if err == nil {
			held = append(held, l)
		}
		return err
	}
	udp := func(a netip.AddrPort) error {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(a))
		if err == nil {
			held = append(held, c)
		}
		return err
	}
	var errs []error
	for _, s := range switches {
		for _, port := range []uint16{p4runtimePort, agentPort, bgpPort} {
			errs = append(errs, tcp(p.at(s.number, port)))
		}
		for port := range uint16(len(s.cables)) {
			errs = append(errs, udp(p.at(s.number, tunnelPort+1+port)))
		}
	}
	for _, h := range hosts {
		errs = append(errs, tcp(p.at(h.number, daemonPort)), udp(p.at(h.number, tunnelPort)))
	}
	return errors.Join(errs...)
}
