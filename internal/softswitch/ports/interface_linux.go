package ports

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/mmsg"
)

// An Interface is a port on a network interface, which is in promiscuous mode while the port is
// open. It receives through a ring shared with the kernel (TPACKET_V2: unlike with version 3, a
// frame is visible as soon as it arrives) and sends by sendmmsg. It does not receive frames that
// the machine itself sends.
//
// If a virtual interface delivers a frame whose checksum was not computed, the port computes it; it
// also restores a VLAN tag removed by offloads. A frame that stands for several, made by
// segmentation offload or by GRO, is dropped and counted as RxSegmented, because the switch would
// process it as one packet.
type Interface struct {
	name   string
	index  int
	rx     *os.File // receives, in the Go runtime's poller
	rxRaw  syscall.RawConn
	ringMu sync.Mutex // Recv against Close
	ring   ring
	tx     *os.File // only sends
	txRaw  syscall.RawConn
	counters

	// Used by the single running Recv. rxCall is created once so that calls do not allocate.
	bufs   [][]byte
	n      int
	err    error
	rxCall func(fd uintptr) bool
	out    sender

	closed  atomic.Bool
	statsMu sync.Mutex // the kernel resets its statistics when they are read
}

// OpenInterface opens a port on the network interface of that name in the calling thread's network
// namespace. The error wraps ErrConfig, os.ErrPermission or another error of the operating system.
func OpenInterface(name string, o Options) (*Interface, error) {
	p := &Interface{name: name, counters: counters{hint: o.Hint}}
	if err := p.open(o); err != nil {
		err = errors.Join(err, p.closeFiles())
		return nil, fmt.Errorf("ports: interface %s: %w", name, err)
	}
	return p, nil
}

func (p *Interface) open(o Options) error {
	ifi, err := net.InterfaceByName(p.name)
	if err != nil {
		return fmt.Errorf("%w (\"ip link\" lists the interfaces of this network namespace)", err)
	}
	if len(ifi.HardwareAddr) != 6 {
		return fmt.Errorf("%w: it is not an Ethernet interface", ErrConfig)
	}
	p.index = ifi.Index
	// The receiving socket is bound only when setup is complete, so that it receives nothing
	// before.
	if p.rx, p.rxRaw, err = packetSocket(p.name); err != nil {
		return err
	}
	if p.tx, p.txRaw, err = packetSocket(p.name); err != nil {
		return err
	}
	p.rxCall, p.out.sock = p.recv, mmsg.NewSender(p.txRaw)
	err = control(p.rxRaw, func(fd int) error { return p.setupRx(fd, ifi.MTU, o.buffer()) })
	if err != nil {
		return err
	}
	return control(p.txRaw, func(fd int) error {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, o.buffer()) != nil {
			// Without CAP_NET_ADMIN the kernel's limit applies.
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, o.buffer()); err != nil {
				return os.NewSyscallError("setsockopt SO_SNDBUF", err)
			}
		}
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: p.index}))
	})
}

// packetSocket returns a raw packet socket that receives nothing yet.
func packetSocket(name string) (*os.File, syscall.RawConn, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		err = fmt.Errorf("packet socket: %w", os.NewSyscallError("socket", err))
		if errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("%w (run as root or with CAP_NET_RAW and CAP_NET_ADMIN; a UDP tunnel needs neither)", err)
		}
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, raw, nil
}

func control(raw syscall.RawConn, f func(fd int) error) error {
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func (p *Interface) setupRx(fd, mtu, buffer int) error {
	set := func(name string, opt, value int) error {
		return os.NewSyscallError("setsockopt "+name, unix.SetsockoptInt(fd, unix.SOL_PACKET, opt, value))
	}
	if err := set("PACKET_VERSION", unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
		return err
	}
	if err := set("PACKET_VNET_HDR", unix.PACKET_VNET_HDR, 1); err != nil {
		return err
	}
	// Older kernels lack this option; recv then ignores such frames.
	if err := set("PACKET_IGNORE_OUTGOING", unix.PACKET_IGNORE_OUTGOING, 1); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return err
	}
	if err := p.ring.open(fd, mtu, buffer); err != nil {
		return err
	}
	promisc := unix.PacketMreq{Ifindex: int32(p.index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &promisc); err != nil {
		return os.NewSyscallError("setsockopt PACKET_ADD_MEMBERSHIP", err)
	}
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: p.index, Protocol: all}))
}

// downCheck is the interval at which an interface that is down is checked, because it may be
// removed.
const downCheck = 200 * time.Millisecond

// Name returns the interface's name.
func (p *Interface) Name() string { return p.name }

// Index returns the interface's number.
func (p *Interface) Index() int { return p.index }

// Recv implements Port.
func (p *Interface) Recv(bufs [][]byte) (int, error) {
	if len(bufs) == 0 {
		return 0, nil
	}
	p.bufs, p.n, p.err = bufs[:min(len(bufs), MaxBatch)], 0, nil
	err := p.rxRaw.Read(p.rxCall)
	for errors.Is(err, os.ErrDeadlineExceeded) && !p.closed.Load() {
		_ = p.rx.SetReadDeadline(time.Time{}) // fails if the file is closed, which Read reports
		err = p.rxRaw.Read(p.rxCall)
	}
	p.bufs = nil
	if err == nil {
		err = p.err
	}
	if err != nil {
		if p.closed.Load() {
			err = net.ErrClosed
		}
		return 0, fmt.Errorf("ports: interface %s: %w", p.name, err)
	}
	return p.n, nil
}

// recv reads frames from the ring and reports whether Recv is done.
func (p *Interface) recv(fd uintptr) bool {
	p.ringMu.Lock()
	defer p.ringMu.Unlock()
	if p.fetch() {
		return true
	}
	switch err := socketError(int(fd)); {
	case err == nil, errors.Is(err, unix.ENETDOWN):
		// The interface may come up again, unless it was removed. An interface that is being
		// removed goes down first, and then the kernel reports no more.
		flags, err := linkFlags(int(fd), p.index)
		if errors.Is(err, unix.ENODEV) {
			p.err = ErrGone
			return true
		}
		if flags&unix.IFF_UP == 0 {
			_ = p.rx.SetReadDeadline(time.Now().Add(downCheck)) // as above
		}
		return p.fetch()
	default:
		p.err = os.NewSyscallError("packet socket", err)
		return true
	}
}

// fetch reads frames from the ring into p.bufs and reports whether any were kept.
func (p *Interface) fetch() bool {
	bytes := 0
	for p.n < len(p.bufs) {
		s := p.ring.next()
		if s == nil {
			break
		}
		if b, ok := p.accept(s, p.bufs[p.n]); ok {
			p.bufs[p.n] = b
			bytes += len(b)
			p.n++
		}
		p.ring.release(s)
	}
	p.received(p.n, bytes)
	return p.n > 0
}

// accept copies the frame in a slot to buf, and returns false if it is dropped.
func (p *Interface) accept(s *slot, buf []byte) ([]byte, bool) {
	frame, vnet := s.frame(), s.vnet()
	switch tagged := s.tagged(); {
	case s.outgoing():
		return nil, false // not a received frame
	case vnet.segmented():
		p.drop(RxSegmented, 1)
		p.advise(RxSegmented, func() string {
			return fmt.Sprintf("interface %[1]s hands over several frames in one (%[2]d bytes), which are dropped; turn offloads off here "+
				"with \"ethtool -K %[1]s gro off lro off\" and, if %[1]s is one end of a veth pair, at the other end with "+
				"\"ethtool -K PEER tx off sg off tso off gso off\"", p.name, s.hdr.Len)
		})
	case int(s.hdr.Len) > len(frame), len(frame)+tagged > cap(buf):
		p.drop(RxTooLong, 1)
		p.advise(RxTooLong, func() string {
			return fmt.Sprintf("interface %s: a frame of %d bytes is longer than its MTU was when the port was opened and is dropped; "+
				"set the MTU before the switch starts", p.name, s.hdr.Len)
		})
	case len(frame) < HeaderLen:
		p.drop(RxRunt, 1)
	case tagged > 0:
		buf = buf[:len(frame)+4]
		copy(buf, frame[:12])
		binary.BigEndian.PutUint16(buf[12:], s.tpid())
		binary.BigEndian.PutUint16(buf[14:], s.hdr.Vlan_tci)
		copy(buf[16:], frame[12:])
		vnet.complete(buf, 4)
		return buf, true
	default:
		buf = append(buf[:0], frame...)
		vnet.complete(buf, 0)
		return buf, true
	}
	return nil, false
}

// Send implements Port.
func (p *Interface) Send(frames [][]byte) int { return p.out.send(frames, &p.counters, p.refused) }

// refused is called with a frame that was not sent.
func (p *Interface) refused(frame []byte, r Reason) {
	switch r {
	case TxTooLong:
		p.advise(r, func() string {
			return fmt.Sprintf("interface %s: frames that are longer than its MTU allows, such as one of %d bytes, are dropped; "+
				"give all interfaces of the switch the same MTU", p.name, len(frame))
		})
	case TxDown:
		p.advise(r, func() string {
			return fmt.Sprintf("interface %[1]s is down and what should leave it is dropped; \"ip link set %[1]s up\" brings it up", p.name)
		})
	}
}

// Up reports whether the interface is up and has a link.
func (p *Interface) Up() bool {
	up := false
	err := control(p.txRaw, func(fd int) error {
		flags, err := linkFlags(fd, p.index)
		up = flags&unix.IFF_UP != 0 && flags&unix.IFF_RUNNING != 0
		return err
	})
	return err == nil && up
}

// Stats implements Port.
func (p *Interface) Stats() Stats {
	p.readKernel()
	return p.stats()
}

// readKernel adds the frames that the kernel dropped since the last call, because the ring was
// full.
func (p *Interface) readKernel() {
	p.statsMu.Lock()
	defer p.statsMu.Unlock()
	// A closed socket has nothing to add, because Close has called this.
	_ = control(p.rxRaw, func(fd int) error {
		s, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err == nil {
			p.drop(RxFull, int(s.Drops))
		}
		return err
	})
}

// Close implements Port.
func (p *Interface) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	p.readKernel()
	return p.closeFiles()
}

// closeFiles closes the sockets, and the ring when no Recv uses it any more.
func (p *Interface) closeFiles() error {
	var errs []error
	for _, f := range []*os.File{p.rx, p.tx} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	p.ringMu.Lock()
	defer p.ringMu.Unlock()
	return errors.Join(append(errs, p.ring.close())...)
}

// socketError returns and clears the socket's pending error.
func socketError(fd int) error {
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if errno == 0 {
		return nil
	}
	return unix.Errno(errno)
}

// linkFlags returns the flags of the interface of that index, or ENODEV.
func linkFlags(fd, index int) (uint16, error) {
	// The name may have changed, so ask for it.
	var req struct {
		name  [unix.IFNAMSIZ]byte
		index int32
		_     [20]byte
	}
	req.index = int32(index)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGIFNAME, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return 0, errno
	}
	ifr, err := unix.NewIfreq(unix.ByteSliceToString(req.name[:]))
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return 0, err
	}
	return ifr.Uint16(), nil
}
