package framelink

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/mcrdma/mcrdma/internal/mmsg"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// Defaults of a TunnelConfig.
const (
	DefaultTunnelMaxFrame = 9216    // jumbo frames
	DefaultTunnelBuffer   = 4 << 20 // socket buffers, each way, bytes
)

// A TunnelConfig describes a tunnel. See the package comment for its format.
type TunnelConfig struct {
	// Local is the address to receive on; port 0 takes a free one. Its IP
	// address may be unspecified.
	Local netip.AddrPort
	// Remote is where frames go and the only address that they are accepted
	// from.
	Remote netip.AddrPort
	// MaxFrame is the size of the largest frame that is received, bytes. 0
	// means DefaultTunnelMaxFrame.
	MaxFrame int
	// Buffer is the size to ask for each of the socket's buffers, bytes; the
	// kernel may give less (net.core.rmem_max). 0 means DefaultTunnelBuffer.
	Buffer int
}

// A Tunnel is a Conn that carries each frame in one UDP datagram.
type Tunnel struct {
	udp    *net.UDPConn
	sock   *mmsg.Socket
	remote netip.AddrPort

	txMu sync.Mutex
	tx   [mmsg.MaxBatch]mmsg.Message
	rx   [mmsg.MaxBatch]mmsg.Message

	txLost, rxRemote, rxTruncated, rxRunt atomic.Uint64
}

// DialTunnel opens a tunnel. Nothing is exchanged: it succeeds whether or not a
// peer is at the other end.
func DialTunnel(cfg TunnelConfig) (*Tunnel, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("framelink: tunnel: %w", err)
	}
	udp, sock, err := mmsg.Listen(cfg.Local, cfg.Buffer)
	if err != nil {
		return nil, fmt.Errorf("framelink: tunnel: %w", err)
	}
	t := &Tunnel{udp: udp, sock: sock, remote: cfg.Remote}
	for i := range t.rx {
		t.rx[i].Buf = make([]byte, cfg.MaxFrame)
	}
	return t, nil
}

// check fills in the defaults and reports what is wrong.
func (c *TunnelConfig) check() error {
	c.MaxFrame, c.Buffer = cmp.Or(c.MaxFrame, DefaultTunnelMaxFrame), cmp.Or(c.Buffer, DefaultTunnelBuffer)
	c.Local, c.Remote = mmsg.Unmap(c.Local), mmsg.Unmap(c.Remote)
	switch err := mmsg.CheckTunnel(c.Local, c.Remote); {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrConfig, err)
	case c.MaxFrame < rocev2.EthernetLen || c.MaxFrame > 65507:
		return fmt.Errorf("%w: frames of %d bytes; a UDP datagram holds %d to 65507", ErrConfig, c.MaxFrame, rocev2.EthernetLen)
	case c.Buffer < 0:
		return fmt.Errorf("%w: a socket buffer of %d bytes", ErrConfig, c.Buffer)
	}
	return nil
}

// LocalAddr returns the address that the tunnel receives on.
func (t *Tunnel) LocalAddr() netip.AddrPort { return mmsg.LocalAddr(t.udp) }

// Send implements Conn.
func (t *Tunnel) Send(frames [][]byte) error {
	t.txMu.Lock()
	defer t.txMu.Unlock()
	for len(frames) > 0 {
		n := min(len(frames), len(t.tx))
		for i, f := range frames[:n] {
			t.tx[i] = mmsg.Message{Buf: f, Addr: t.remote}
		}
		err := t.sendAll(t.tx[:n])
		clear(t.tx[:n])
		if err != nil {
			return err
		}
		frames = frames[n:]
	}
	return nil
}

// sendAll sends what the network takes; what it refuses is lost.
func (t *Tunnel) sendAll(ms []mmsg.Message) error {
	for {
		n, err := t.sock.Send(ms)
		if err == nil {
			return nil
		}
		if !lossy(err) {
			return err
		}
		t.txLost.Add(1)
		ms = ms[n+1:]
	}
}

// lossy reports whether err is about the way to the peer, which may get better
// and which a network answers with silence, or about one frame.
func lossy(err error) bool {
	var e syscall.Errno
	return errors.As(err, &e) && slices.Contains([]syscall.Errno{syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENETDOWN,
		syscall.EHOSTDOWN, syscall.ECONNREFUSED, syscall.EPERM, syscall.EACCES, syscall.ENOBUFS, syscall.EMSGSIZE, syscall.EINVAL}, e)
}

// Recv implements Conn.
func (t *Tunnel) Recv(frames [][]byte) (int, error) {
	for len(frames) > 0 {
		n, err := t.sock.Recv(t.rx[:min(len(frames), len(t.rx))])
		if err != nil {
			return 0, err
		}
		kept := 0
		for i := range n {
			if m := &t.rx[i]; t.accept(m) {
				frames[kept] = m.Buf[:m.N]
				kept++
			}
		}
		if kept > 0 {
			return kept, nil
		}
	}
	return 0, nil
}

// accept reports whether m is a frame from the remote.
func (t *Tunnel) accept(m *mmsg.Message) bool {
	switch {
	case m.Addr != t.remote:
		t.rxRemote.Add(1)
	case m.Truncated:
		t.rxTruncated.Add(1)
	case m.N < rocev2.EthernetLen:
		t.rxRunt.Add(1)
	default:
		return true
	}
	return false
}

// Counters implements Conn.
func (t *Tunnel) Counters(m map[string]uint64) {
	m["syscalls"] += t.sock.Syscalls()
	m["tx_drop_tunnel"] += t.txLost.Load()
	m["rx_drop_remote"] += t.rxRemote.Load()
	m["rx_drop_too_long"] += t.rxTruncated.Load()
	m["rx_drop_runt"] += t.rxRunt.Load()
}

// Close implements Conn.
func (t *Tunnel) Close() error { return t.udp.Close() }
