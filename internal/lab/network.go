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

// findNetwork puts the lab where nothing else is. Another lab's network has other
// addresses; ports of processes that listen on all addresses are avoided.
func (p *plan) findNetwork() (err error) {
	for try := range uint16(20) {
		p.network = network{net: netip.AddrFrom4([4]byte{127, byte(64 + rand.N(128)), byte(rand.N(256)), 0}), shift: try * 50}
		if err = p.free(); err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return fmt.Errorf("finding a network of loopback addresses: %w", err)
}

// free says whether all addresses of the network can be listened at, by doing so.
func (p plan) free() error {
	var held []io.Closer
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	var errs []error
	hold := func(c io.Closer, err error) {
		if errs = append(errs, err); err == nil {
			held = append(held, c)
		}
	}
	for _, n := range p.switches() {
		for _, port := range []uint16{p4runtimePort, agentPort, bgpPort} {
			hold(net.Listen("tcp", p.at(n, port).String()))
		}
	}
	for _, n := range p.hosts() {
		hold(net.Listen("tcp", p.at(n, daemonPort).String()))
	}
	for _, n := range p.Nodes() {
		for _, port := range n.Ports {
			local, _ := p.cable(n, port)
			hold(net.ListenPacket("udp", local.String()))
		}
	}
	return errors.Join(errs...)
}
