package udplink

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// txSockets is the number of sending sockets and so of UDP source ports. All
// are opened at once, by the thread that opens the link: which network namespace
// they belong to depends on the thread.
const txSockets = 16

// A Link is a link.Link on a local address of the host.
type Link struct {
	addr  netip.Addr
	addr4 [4]byte
	mtu   int
	opt   Options

	claim *socket // the UDP socket on port 4791; receives in mode RXUDP
	raw   *socket // receives in mode RXRaw, else nil
	guard *guard
	rx    receiver

	gsoOff  atomic.Bool // switched off, or refused by the kernel
	tx      [txSockets]*txSocket
	closing atomic.Bool

	counters counters
}

var (
	_ link.Link     = (*Link)(nil)
	_ link.Buffered = (*Link)(nil)
	_ link.Seeing   = (*Link)(nil)
	_ link.Polling  = (*Link)(nil)
)

// Open claims addr, an IPv4 address of this host. The error wraps
// qp.ErrAddrInUse, and names the process, if another device, process or the
// kernel's rdma_rxe has it; qp.ErrDevice if it is not an address of this host.
func Open(addr netip.Addr, opt Options) (*Link, error) {
	if !addr.Is4() || addr.IsUnspecified() || addr.IsMulticast() {
		return nil, fmt.Errorf("udplink: %w: %v is not a unicast IPv4 address", qp.ErrDevice, addr)
	}
	opt.Batch = min(max(cmp.Or(opt.Batch, DefaultBatch), 1), maxBatch)
	if opt.RcvBuf <= 0 {
		opt.RcvBuf = DefaultBuffer
	}
	if opt.SndBuf <= 0 {
		opt.SndBuf = DefaultBuffer
	}
	opt.Poll = cmp.Or(opt.Poll, DefaultPoll)
	l := &Link{addr: addr, addr4: addr.As4(), opt: opt}
	l.gsoOff.Store(opt.NoGSO)
	if err := l.open(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Link) open() (err error) {
	if l.claim, err = openUDP(l.addr4, rocev2.UDPPort); err != nil {
		switch {
		case errors.Is(err, unix.EADDRINUSE):
			return fmt.Errorf("udplink: %w: %v port %d: %s", qp.ErrAddrInUse, l.addr, rocev2.UDPPort, whoHolds(l.addr))
		case errors.Is(err, unix.EADDRNOTAVAIL):
			return fmt.Errorf("udplink: %w: %v is not an address of this host (see: ip -4 address)", qp.ErrDevice, l.addr)
		}
		return fmt.Errorf("udplink: %v: %w", l.addr, err)
	}
	l.guard = openGuard(l.addr)
	if l.mtu, err = interfaceMTU(l.addr); err != nil {
		return err
	}
	for i := range l.tx {
		if l.tx[i], err = l.openTx(i); err != nil {
			return fmt.Errorf("udplink: %v: %w", l.addr, err)
		}
	}
	if l.opt.RX != RXUDP {
		l.raw, err = openRaw(l.addr4)
		if err != nil && (l.opt.RX == RXRaw || !errors.Is(err, unix.EPERM)) {
			return fmt.Errorf("udplink: %v: raw socket (CAP_NET_RAW is needed; rx=udp does without): %w", l.addr, err)
		}
	}
	// Aggregated datagrams are switched on for the socket that holds the port
	// in both modes: otherwise the kernel would cut them up for it, and in
	// mode RXRaw only to drop the pieces.
	if !l.opt.NoGRO {
		if err := l.claim.setInt(unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
			l.counters.groRefused.Add(1)
		}
	}
	if l.raw != nil {
		if err := l.claim.filter(dropAll); err != nil {
			return err
		}
		l.raw.setBuffer(unix.SO_RCVBUF, l.opt.RcvBuf)
		l.rx.init(l, l.raw)
		return nil
	}
	if err := l.claim.setInt(unix.IPPROTO_IP, unix.IP_RECVTOS, 1); err != nil {
		return err
	}
	l.claim.setBuffer(unix.SO_RCVBUF, l.opt.RcvBuf)
	l.rx.init(l, l.claim)
	return nil
}

// Addr returns the link's own address.
func (l *Link) Addr() netip.Addr { return l.addr }

// MTU returns the MTU of the interface that held the address at Open.
func (l *Link) MTU() int { return l.mtu }

// RxSpace returns the size of the receive buffer that the kernel has granted.
// The kernel doubles what it is asked for, to leave room for its own overhead.
func (l *Link) RxSpace() int {
	n, err := l.rx.sock.getInt(unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0
	}
	return n / 2
}

// SeesIdentification implements link.Seeing: a UDP socket does not show the identification.
func (l *Link) SeesIdentification() bool { return l.raw != nil }

// PollFor implements link.Polling. A Recv that blocks does so until the next packet.
func (l *Link) PollFor(d time.Duration) { l.rx.spin.ask(time.Now(), d) }

// RX returns the receive mode in use, RXRaw or RXUDP.
func (l *Link) RX() RXMode {
	if l.raw != nil {
		return RXRaw
	}
	return RXUDP
}

// Close closes the sockets. A blocked Recv or Send returns net.ErrClosed.
func (l *Link) Close() error {
	if l.closing.Swap(true) {
		return net.ErrClosed
	}
	for _, s := range l.tx {
		if s != nil {
			s.close()
		}
	}
	l.guard.close()
	l.raw.close()
	l.claim.close()
	return nil
}

// interfaceMTU returns the MTU of the interface that holds addr.
func interfaceMTU(addr netip.Addr) (int, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return 0, fmt.Errorf("udplink: interfaces: %w", err)
	}
	loopback := 0
	for _, i := range ifs {
		as, err := i.Addrs()
		if err != nil {
			continue // it has gone away since
		}
		for _, a := range as {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == addr {
				return i.MTU, nil
			}
			// All of 127.0.0.0/8 is local though only 127.0.0.1 is listed.
			if i.Flags&net.FlagLoopback != 0 && n.Contains(addr.AsSlice()) {
				loopback = i.MTU
			}
		}
	}
	if loopback != 0 {
		return loopback, nil
	}
	return 0, fmt.Errorf("udplink: %w: no interface of this host has %v", qp.ErrDevice, addr)
}
