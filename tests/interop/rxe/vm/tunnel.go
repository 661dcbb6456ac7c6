package vm

import (
	"net"
	"net/netip"
	"sync/atomic"
)

// A tunnelPort is a switch port that is a UDP socket: each datagram is a frame,
// and frames go out to the latest sender.
type tunnelPort struct {
	conn *net.UDPConn
	peer atomic.Pointer[netip.AddrPort]
}

func (p *tunnelPort) Read(b []byte) (int, error) {
	n, from, err := p.conn.ReadFromUDPAddrPort(b)
	if err == nil {
		p.peer.Store(&from)
	}
	return n, err
}

func (p *tunnelPort) Write(b []byte) (int, error) {
	to := p.peer.Load()
	if to == nil {
		return len(b), nil // no peer is known yet
	}
	return p.conn.WriteToUDPAddrPort(b, *to)
}

func (p *tunnelPort) Close() error { return p.conn.Close() }
