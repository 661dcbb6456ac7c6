//go:build !linux

package mmsg

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
)

// A Socket sends and receives datagrams on one UDP socket, one system call
// each. Send and Recv may each be called by many goroutines at once.
type Socket struct {
	conn     *net.UDPConn
	syscalls atomic.Uint64
}

// New returns a Socket on c. c stays the caller's, who closes it; both may be
// used side by side.
func New(c *net.UDPConn) (*Socket, error) { return &Socket{conn: c}, nil }

// Syscalls returns how many calls were made.
func (s *Socket) Syscalls() uint64 { return s.syscalls.Load() }

// Send sends ms in order and returns how many went. It waits while the
// socket's buffer is full. An error concerns message n: those before it are
// sent, those after it were not tried, and the caller may go on behind it.
func (s *Socket) Send(ms []Message) (n int, err error) {
	for ; n < len(ms); n++ {
		m := &ms[n]
		s.syscalls.Add(1)
		switch {
		case !m.Addr.IsValid():
			_, err = s.conn.Write(m.Buf)
		case m.Addr.Addr().Zone() != "":
			err = fmt.Errorf("%w: %v has a zone", ErrAddr, m.Addr)
		default:
			_, err = s.conn.WriteToUDPAddrPort(m.Buf, m.Addr)
		}
		if err != nil {
			return n, fmt.Errorf("mmsg: %w", err)
		}
	}
	return n, nil
}

// Recv waits for a datagram, fills the first of ms and returns 1 (or 0 if ms
// is empty).
func (s *Socket) Recv(ms []Message) (n int, err error) {
	if len(ms) == 0 {
		return 0, nil
	}
	m := &ms[0]
	s.syscalls.Add(1)
	m.N, m.Addr, err = s.conn.ReadFromUDPAddrPort(m.Buf)
	m.Truncated = false
	if err != nil {
		return 0, fmt.Errorf("mmsg: %w", err)
	}
	if a := m.Addr.Addr(); a.Is4In6() {
		m.Addr = netip.AddrPortFrom(a.Unmap(), m.Addr.Port())
	}
	return 1, nil
}
