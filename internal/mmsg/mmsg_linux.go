package mmsg

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is the kernel's struct mmsghdr. Go pads it to the alignment of the
// pointers in Msghdr, as C does.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// A Socket sends and receives batches on one UDP socket. Send and Recv may each
// be called by many goroutines at once; calls of one kind take turns.
type Socket struct {
	inet6    bool // the socket's family; an IPv4 address is mapped then
	tx, rx   half
	syscalls atomic.Uint64
}

// A half is the state of one direction. The headers, iovecs and socket
// addresses live here so that a call allocates nothing, and so does the
// function that the poller calls.
type half struct {
	mu    sync.Mutex
	name  string                            // of the system call
	wait  func(func(fd uintptr) bool) error // runs call whenever the socket is ready, until it is done
	call  func(fd uintptr) bool
	hasty bool // does not wait
	n     int  // messages prepared
	done  int  // messages moved, set by call
	errno unix.Errno
	hdrs  [MaxBatch]mmsghdr
	iovs  [MaxBatch]unix.Iovec
	names [MaxBatch]unix.RawSockaddrInet6 // room for either family
}

// New returns a Socket on c. c stays the caller's, who closes it; both may be
// used side by side.
func New(c *net.UDPConn) (*Socket, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("mmsg: %w", err)
	}
	s := new(Socket)
	var domain int
	var serr error
	if err = raw.Control(func(fd uintptr) {
		domain, serr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
	}); err == nil {
		err = os.NewSyscallError("getsockopt", serr)
	}
	if err != nil {
		return nil, fmt.Errorf("mmsg: %w", err)
	}
	s.inet6 = domain == unix.AF_INET6
	s.sends(raw)
	s.rx.name, s.rx.wait = "recvmmsg", raw.Read
	s.rx.call = func(fd uintptr) bool { return s.syscall(fd, &s.rx, unix.SYS_RECVMMSG) }
	return s, nil
}

// NewSender returns a Socket that only sends, on a socket of any kind that is bound
// or connected. Send does not wait: while the socket's buffer is full, it returns
// EAGAIN. Messages have no addresses.
func NewSender(raw syscall.RawConn) *Socket {
	s := new(Socket)
	s.sends(raw)
	s.tx.hasty = true
	return s
}

func (s *Socket) sends(raw syscall.RawConn) {
	s.tx.name, s.tx.wait = "sendmmsg", raw.Write
	s.tx.call = func(fd uintptr) bool { return s.syscall(fd, &s.tx, unix.SYS_SENDMMSG) }
}

// Syscalls returns how many sendmmsg and recvmmsg calls were made.
func (s *Socket) Syscalls() uint64 { return s.syscalls.Load() }

// syscall makes one call for h and reports whether it is done, rather than
// having to wait until the socket is ready. The call does not wait, so the scheduler does not learn of it: the first
// one after all threads were idle would wake the runtime's monitor, which then wakes every 20 µs.
func (s *Socket) syscall(fd uintptr, h *half, trap uintptr) bool {
	for {
		s.syscalls.Add(1)
		n, _, errno := unix.RawSyscall6(trap, fd, uintptr(unsafe.Pointer(&h.hdrs[0])), uintptr(h.n),
			unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == 0:
			h.done, h.errno = int(n), 0
			return true
		case errno == unix.EINTR:
		case errno == unix.EAGAIN && !h.hasty:
			return false
		default:
			h.done, h.errno = 0, errno
			return true
		}
	}
}

// Send sends ms in order and returns how many went. It waits while the
// socket's buffer is full. An error concerns message n: those before it are
// sent, those after it were not tried, and the caller may go on behind it. It
// wraps ErrAddr, net.ErrClosed, os.ErrDeadlineExceeded or a syscall.Errno.
func (s *Socket) Send(ms []Message) (n int, err error) {
	h := &s.tx
	h.mu.Lock()
	defer h.mu.Unlock()
	for n < len(ms) {
		piece := ms[n:min(len(ms), n+MaxBatch)]
		ready := 0
		for i := range piece {
			if err = s.prepare(h, i, &piece[i]); err != nil {
				break
			}
			ready++
		}
		if ready > 0 {
			sent, serr := h.move(ready)
			n += sent
			if serr != nil {
				return n, serr
			}
			if sent < ready {
				continue // the next call tells why it stopped there
			}
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Recv waits for datagrams, fills ms from its start and returns how many there
// are, at least one (or 0 if ms is empty). It wraps net.ErrClosed,
// os.ErrDeadlineExceeded or a syscall.Errno.
func (s *Socket) Recv(ms []Message) (n int, err error) {
	if len(ms) == 0 {
		return 0, nil
	}
	h := &s.rx
	h.mu.Lock()
	defer h.mu.Unlock()
	ms = ms[:min(len(ms), MaxBatch)]
	for i := range ms {
		h.setBuf(i, ms[i].Buf)
		h.hdrs[i].hdr.Name = (*byte)(unsafe.Pointer(&h.names[i]))
		h.hdrs[i].hdr.Namelen = unix.SizeofSockaddrInet6
		h.hdrs[i].hdr.Flags = 0
	}
	n, err = h.move(len(ms))
	for i := range n {
		ms[i].N = int(h.hdrs[i].len)
		ms[i].Truncated = h.hdrs[i].hdr.Flags&unix.MSG_TRUNC != 0
		ms[i].Addr = getName(&h.names[i])
	}
	return n, err
}

// move runs the prepared call through the poller and forgets the buffers.
func (h *half) move(n int) (int, error) {
	h.n, h.done, h.errno = n, 0, 0
	err := h.wait(h.call)
	for i := range n {
		h.iovs[i].Base = nil
	}
	if err != nil {
		return 0, fmt.Errorf("mmsg: %w", err)
	}
	if h.errno != 0 {
		return 0, fmt.Errorf("mmsg: %w", os.NewSyscallError(h.name, h.errno))
	}
	return h.done, nil
}

func (s *Socket) prepare(h *half, i int, m *Message) error {
	h.setBuf(i, m.Buf)
	hdr := &h.hdrs[i].hdr
	if !m.Addr.IsValid() {
		hdr.Name, hdr.Namelen = nil, 0
		return nil
	}
	n, err := setName(&h.names[i], m.Addr, s.inet6)
	hdr.Name, hdr.Namelen = (*byte)(unsafe.Pointer(&h.names[i])), n
	return err
}

func (h *half) setBuf(i int, b []byte) {
	h.iovs[i].Base = unsafe.SliceData(b)
	h.iovs[i].SetLen(len(b))
	h.hdrs[i].hdr.Iov = &h.iovs[i]
	h.hdrs[i].hdr.SetIovlen(1)
}

// setName encodes a as a socket address of the wanted family and returns its
// length.
func setName(sa *unix.RawSockaddrInet6, a netip.AddrPort, inet6 bool) (uint32, error) {
	ip := a.Addr()
	if ip.Zone() != "" {
		return 0, fmt.Errorf("%w: %v has a zone", ErrAddr, a)
	}
	if inet6 {
		*sa = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: ip.As16()}
		setPort(&sa.Port, a.Port())
		return unix.SizeofSockaddrInet6, nil
	}
	if ip = ip.Unmap(); !ip.Is4() {
		return 0, fmt.Errorf("%w: %v from an IPv4 socket", ErrAddr, a)
	}
	sa4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
	*sa4 = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: ip.As4()}
	setPort(&sa4.Port, a.Port())
	return unix.SizeofSockaddrInet4, nil
}

func getName(sa *unix.RawSockaddrInet6) netip.AddrPort {
	switch sa.Family {
	case unix.AF_INET:
		sa4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(sa4.Addr), port(&sa4.Port))
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), port(&sa.Port))
	}
	return netip.AddrPort{}
}

// Ports are in network order in memory, whatever the machine's.

func setPort(p *uint16, v uint16) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(p))[:], v)
}

func port(p *uint16) uint16 {
	return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:])
}
