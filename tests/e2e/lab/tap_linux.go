package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Tap counts the packets that an interface sends: RoCEv2 packets by destination. It changes
// nothing.
type Tap struct {
	fd    int
	ended atomic.Bool
	done  sync.WaitGroup

	mu    sync.Mutex
	flows map[TapFlow]TapCount
	other TapCount
	lost  uint64 // frames that it missed
}

// A TapFlow is the destination of packets.
type TapFlow struct {
	To  netip.Addr
	QPN rocev2.QPN
}

// A TapCount is a number of frames and bytes.
type TapCount struct {
	Frames uint64
	Bytes  uint64 // of whole frames, without preamble and frame check
}

func (c *TapCount) add(o TapCount) {
	c.Frames += o.Frames
	c.Bytes += o.Bytes
}

const (
	tapBuffer = 128 << 20
	tapSnap   = 64    // holds all headers up to BTH
	tapTick   = 20e3  // µs between two checks whether it has been stopped
	tapQPN    = 47    // offset of the destination QPN in a frame: Ethernet, IPv4, UDP, 5 bytes of BTH
	roceUDP   = 4791  // port
	etherIPv4 = 0x800 // type
)

// Tap starts counting what the host sends. Stop ends it.
func (h *HostNode) Tap() (*Tap, error) { return h.Space.tap("eth0") }

// Tap starts counting what the switch sends on a port. Stop ends it.
func (n *SwitchNode) Tap(port int) (*Tap, error) { return n.Space.tap(swp(port)) }

func (s *Space) tap(name string) (*Tap, error) {
	t := &Tap{fd: -1, flows: map[TapFlow]TapCount{}}
	err := s.Do(func() (err error) {
		nic, err := s.nl.LinkByName(name)
		if err != nil {
			return err
		}
		if t.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return os.NewSyscallError("socket", err)
		}
		if err := unix.SetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, tapBuffer); err != nil {
			return os.NewSyscallError("setsockopt SO_RCVBUFFORCE", err)
		}
		if err := unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: tapTick}); err != nil {
			return os.NewSyscallError("setsockopt SO_RCVTIMEO", err)
		}
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		return os.NewSyscallError("bind", unix.Bind(t.fd, &unix.SockaddrLinklayer{Ifindex: nic.Attrs().Index, Protocol: all}))
	})
	if err != nil {
		if t.fd >= 0 {
			_ = unix.Close(t.fd)
		}
		return nil, fmt.Errorf("tap at %s of %s: %w", name, s.Name, err)
	}
	t.done.Go(t.run)
	return t, nil
}

func (t *Tap) run() {
	defer unix.Close(t.fd)
	buf := make([]byte, tapSnap)
	for {
		n, from, err := unix.Recvfrom(t.fd, buf, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			if t.ended.Load() {
				if s, err := unix.GetsockoptTpacketStats(t.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
					t.mu.Lock()
					t.lost += uint64(s.Drops)
					t.mu.Unlock()
				}
				return
			}
			continue
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN):
			continue
		case err != nil:
			return
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
			t.count(buf[:min(n, tapSnap)], n)
		}
	}
}

func (t *Tap) count(b []byte, length int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := TapCount{1, uint64(length)}
	if len(b) < tapQPN+3 || binary.BigEndian.Uint16(b[12:]) != etherIPv4 || b[14] != 0x45 || b[23] != unix.IPPROTO_UDP ||
		binary.BigEndian.Uint16(b[36:]) != roceUDP {
		t.other.add(c)
		return
	}
	f := TapFlow{netip.AddrFrom4([4]byte(b[30:34])), rocev2.QPN(b[tapQPN])<<16 | rocev2.QPN(b[tapQPN+1])<<8 | rocev2.QPN(b[tapQPN+2])}
	sum := t.flows[f]
	sum.add(c)
	t.flows[f] = sum
}

// Stop ends the tap, and returns its counts: RoCEv2 packets by flow, and all others. An error says
// that it has missed some.
func (t *Tap) Stop() (flows map[TapFlow]TapCount, other TapCount, err error) {
	t.ended.Store(true)
	t.done.Wait()
	if t.lost > 0 {
		err = fmt.Errorf("the tap has missed %d frames", t.lost)
	}
	return t.flows, t.other, err
}

// Frames returns the packets of a message of n bytes with payloads of up to mtu: their number, and
// the total size of the frames, by the headers of RoCEv2 over IPv4. extra is for RETH (16) and
// immediate data (4).
func Frames(n, mtu, extra int) TapCount {
	packets := max(1, (n+mtu-1)/mtu)
	pad := (4 - n%4) % 4
	const headers = 14 + 20 + 8 + 12 + 4 // Ethernet, IPv4, UDP, BTH, ICRC
	return TapCount{uint64(packets), uint64(packets*headers + n + pad + extra)}
}
