package ports

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/mcrdma/mcrdma/internal/mmsg"
)

// A TunnelConfig configures a UDP tunnel.
type TunnelConfig struct {
	// Local is the address to receive on; port 0 means any free port.
	Local netip.AddrPort
	// Remote is the destination of frames, and the only source from which they are accepted.
	Remote netip.AddrPort
	Options
}

// A Tunnel is a port that carries each frame in a UDP datagram of its own, without a header: the
// format of package framelink's tunnels.
type Tunnel struct {
	udp           *net.UDPConn
	sock          *mmsg.Socket
	name          string
	local, remote netip.AddrPort
	closed        atomic.Bool
	counters

	rx  [MaxBatch]mmsg.Message
	out sender
}

// OpenTunnel opens a tunnel; it exchanges nothing with the other end. The error wraps ErrConfig or
// an error of the operating system.
func OpenTunnel(cfg TunnelConfig) (*Tunnel, error) {
	local, remote := mmsg.Unmap(cfg.Local), mmsg.Unmap(cfg.Remote)
	if err := mmsg.CheckTunnel(local, remote); err != nil {
		return nil, fmt.Errorf("ports: tunnel: %w: %w", ErrConfig, err)
	}
	udp, sock, err := mmsg.Listen(local, cfg.buffer())
	if err != nil {
		return nil, fmt.Errorf("ports: tunnel: %w", err)
	}
	t := &Tunnel{udp: udp, sock: sock, local: mmsg.LocalAddr(udp), remote: remote, counters: counters{hint: cfg.Hint}}
	t.name = fmt.Sprintf("udp:%v,%v", t.local, t.remote)
	t.out.sock, t.out.to = t.sock, t.remote
	return t, nil
}

// Name returns udp:LOCAL,REMOTE.
func (t *Tunnel) Name() string { return t.name }

// LocalAddr returns the tunnel's local address.
func (t *Tunnel) LocalAddr() netip.AddrPort { return t.local }

// Recv implements Port.
func (t *Tunnel) Recv(bufs [][]byte) (int, error) {
	rx := t.rx[:min(len(bufs), MaxBatch)]
	for len(rx) > 0 {
		for i := range rx {
			rx[i].Buf = bufs[i][:cap(bufs[i])]
		}
		n, err := t.sock.Recv(rx)
		if err != nil {
			return 0, fmt.Errorf("ports: %s: %w", t.name, err)
		}
		kept, bytes := 0, 0
		for i := range n {
			if m := &rx[i]; t.accept(m) {
				// Reuse the buffer of a dropped frame.
				bufs[i] = bufs[kept]
				bufs[kept] = m.Buf[:m.N]
				bytes += m.N
				kept++
			}
		}
		if t.received(kept, bytes); kept > 0 {
			return kept, nil
		}
	}
	return 0, nil
}

func (t *Tunnel) accept(m *mmsg.Message) bool {
	switch {
	case m.Addr != t.remote:
		t.drop(RxStranger, 1)
		t.advise(RxStranger, func() string {
			return fmt.Sprintf("%s: datagrams from %v are not from the tunnel's peer and are dropped; "+
				"does the peer send from the address that is configured here?", t.name, m.Addr)
		})
	case m.Truncated:
		t.drop(RxTooLong, 1)
	case m.N < HeaderLen:
		t.drop(RxRunt, 1)
	default:
		return true
	}
	return false
}

// Send implements Port.
func (t *Tunnel) Send(frames [][]byte) int {
	if t.closed.Load() {
		t.drop(TxDown, len(frames))
		return 0
	}
	return t.out.send(frames, &t.counters, func([]byte, Reason) {})
}

// Up reports whether the tunnel is open; it cannot know whether there is a peer at the other end.
func (t *Tunnel) Up() bool { return !t.closed.Load() }

// Stats implements Port.
func (t *Tunnel) Stats() Stats { return t.stats() }

// Close implements Port.
func (t *Tunnel) Close() error {
	t.closed.Store(true)
	return t.udp.Close()
}
