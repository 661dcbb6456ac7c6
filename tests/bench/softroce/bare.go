package main

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Plain UDP written for speed: an unconnected socket, sendmmsg of GSO messages, recvmmsg with GRO,
// the same segment size, buffers and batches as softroce, and the Go runtime's poller for waiting.
const (
	barePort    = 4791
	segment     = 4096
	segments    = 15 // of one GSO message: what fits into 64 KB
	sendBatch   = 4  // GSO messages per call: 60 packets, softroce's batch is 64
	recvBatch   = 32
	socketSpace = 4 << 20
	pingBytes   = 64
)

type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   uint32
}

type bareSocket struct {
	file *os.File
	conn syscall.RawConn
	peer unix.RawSockaddrInet4
}

func openBare(j job) (*bareSocket, error) {
	local, err := netip.ParseAddr(j.Local)
	if err != nil {
		return nil, err
	}
	peer, err := netip.ParseAddr(j.Peer)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	for _, o := range []struct{ level, name, v int }{
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO},
		{unix.SOL_SOCKET, unix.SO_RCVBUF, socketSpace}, {unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketSpace},
		{unix.SOL_SOCKET, unix.SO_SNDBUF, socketSpace}, {unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketSpace},
		{unix.IPPROTO_UDP, unix.UDP_GRO, 1},
	} {
		_ = unix.SetsockoptInt(fd, o.level, o.name, o.v) // cannot be forced without privilege
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: barePort, Addr: local.As4()}); err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	s := &bareSocket{file: os.NewFile(uintptr(fd), "udp")}
	s.peer = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: barePort>>8 | barePort&0xff<<8, Addr: peer.As4()}
	s.conn, err = s.file.SyscallConn()
	return s, err
}

// move makes one system call for msgs, and waits until the socket is ready.
type mover struct {
	s     *bareSocket
	msgs  []mmsghdr
	trap  uintptr
	n     int
	errno unix.Errno
	f     func(fd uintptr) bool // false: wait
	once  func(fd uintptr) bool // f, without waiting
}

func (s *bareSocket) mover(trap uintptr, msgs []mmsghdr) *mover {
	m := &mover{s: s, msgs: msgs, trap: trap}
	m.f = func(fd uintptr) bool {
		n, _, errno := unix.Syscall6(m.trap, fd, uintptr(unsafe.Pointer(&m.msgs[0])), uintptr(len(m.msgs)), unix.MSG_DONTWAIT, 0, 0)
		m.n, m.errno = int(n), errno
		return errno != unix.EAGAIN
	}
	m.once = func(fd uintptr) bool { m.f(fd); return true }
	return m
}

// poll is how long a receiver polls before it blocks, as in softroce.
const poll = 100 * time.Microsecond

func (m *mover) do() (int, error) {
	wait := m.s.conn.Read
	if m.trap == unix.SYS_SENDMMSG {
		wait = m.s.conn.Write
	} else {
		begin := time.Now()
		var err error
		for {
			if err = wait(m.once); err != nil || m.errno != unix.EAGAIN || time.Since(begin) > poll {
				break
			}
		}
		if err == nil && m.errno == 0 {
			return m.n, nil
		}
	}
	if err := wait(m.f); err != nil {
		return 0, err
	}
	if m.errno != 0 {
		return 0, m.errno
	}
	return m.n, nil
}

func udpSend(j job, exchange func(hello) (hello, error), _ <-chan struct{}) (r sideResult, err error) {
	s, err := openBare(j)
	if err != nil {
		return r, err
	}
	defer s.file.Close()
	buf := make([]byte, 1<<20)
	type control struct {
		h    unix.Cmsghdr
		size uint16
		_    [6]byte
	}
	ctl := control{h: unix.Cmsghdr{Len: uint64(unix.CmsgLen(2)), Level: unix.IPPROTO_UDP, Type: unix.UDP_SEGMENT}, size: segment}
	msgs := make([]mmsghdr, sendBatch)
	iovs := make([]unix.Iovec, sendBatch)
	for i := range msgs {
		iovs[i] = unix.Iovec{Base: &buf[i*segment*segments], Len: segment * segments}
		h := &msgs[i].hdr
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(&s.peer)), unix.SizeofSockaddrInet4
		h.Iov, h.Iovlen = &iovs[i], 1
		h.Control, h.Controllen = (*byte)(unsafe.Pointer(&ctl)), uint64(unsafe.Sizeof(ctl))
	}
	m := s.mover(unix.SYS_SENDMMSG, msgs)
	if _, err := exchange(hello{}); err != nil {
		return r, err
	}
	meter := newMeter()
	for end := meter.start.Add(j.Span); time.Now().Before(end); {
		n, err := m.do()
		if err != nil {
			return r, err
		}
		r.Packets += uint64(n * segments)
		r.Bytes += uint64(n * segments * segment)
	}
	meter.read(&r)
	return r, nil
}

// udpRecv counts arriving bytes; the first message starts the meter.
func udpRecv(j job, exchange func(hello) (hello, error), stop <-chan struct{}) (r sideResult, err error) {
	s, err := openBare(j)
	if err != nil {
		return r, err
	}
	defer s.file.Close()
	msgs := make([]mmsghdr, recvBatch)
	iovs := make([]unix.Iovec, recvBatch)
	ctls := make([][8]uint64, recvBatch)
	for i := range msgs {
		iovs[i] = unix.Iovec{Base: unsafe.SliceData(make([]byte, 1<<16)), Len: 1 << 16}
		msgs[i].hdr.Iov, msgs[i].hdr.Iovlen = &iovs[i], 1
		msgs[i].hdr.Control = (*byte)(unsafe.Pointer(&ctls[i]))
	}
	m := s.mover(unix.SYS_RECVMMSG, msgs)
	if _, err := exchange(hello{}); err != nil {
		return r, err
	}
	go func() {
		<-stop
		_ = s.file.SetReadDeadline(time.Now())
	}()
	var meter meter
	for {
		for i := range msgs {
			msgs[i].hdr.Controllen = uint64(unsafe.Sizeof(ctls[i]))
		}
		n, err := m.do()
		if os.IsTimeout(err) {
			break
		} else if err != nil {
			return r, err
		}
		if r.Packets == 0 {
			meter = newMeter()
		}
		for i := range n {
			r.Bytes += uint64(msgs[i].len)
			r.Packets += uint64((msgs[i].len + segment - 1) / segment)
		}
		if time.Since(meter.start) > j.Span {
			break
		}
	}
	meter.read(&r)
	return r, nil
}

// udpPing and udpPong send 64 bytes back and forth, one system call each way.
func udpPing(j job, exchange func(hello) (hello, error), _ <-chan struct{}) (r sideResult, err error) {
	s, err := openBare(j)
	if err != nil {
		return r, err
	}
	defer s.file.Close()
	tx, rx := s.small()
	if _, err := exchange(hello{}); err != nil {
		return r, err
	}
	_ = s.file.SetDeadline(time.Now().Add(j.Span + 5*time.Second))
	r.RTT, err = j.pings(func() error {
		if _, err := tx.do(); err != nil {
			return err
		}
		_, err := rx.do()
		return err
	})
	return r, err
}

// pings returns the round-trip times, sorted.
func (j *job) pings(once func() error) (list []time.Duration, err error) {
	for end := time.Now().Add(j.Span); ; {
		begin := time.Now()
		if begin.After(end) {
			break
		}
		if err := once(); err != nil {
			return nil, err
		}
		list = append(list, time.Since(begin))
	}
	slices.Sort(list)
	return list, nil
}

func udpPong(j job, exchange func(hello) (hello, error), stop <-chan struct{}) (r sideResult, err error) {
	s, err := openBare(j)
	if err != nil {
		return r, err
	}
	defer s.file.Close()
	tx, rx := s.small()
	if _, err := exchange(hello{}); err != nil {
		return r, err
	}
	go func() {
		<-stop
		_ = s.file.SetReadDeadline(time.Now())
	}()
	for {
		if _, err := rx.do(); os.IsTimeout(err) {
			return r, nil
		} else if err != nil {
			return r, err
		}
		if _, err := tx.do(); err != nil {
			return r, err
		}
	}
}

// small prepares one small message each way.
func (s *bareSocket) small() (tx, rx *mover) {
	mk := func(n int) []mmsghdr {
		msgs := make([]mmsghdr, 1)
		msgs[0].hdr.Iov, msgs[0].hdr.Iovlen = &unix.Iovec{Base: unsafe.SliceData(make([]byte, n)), Len: uint64(n)}, 1
		return msgs
	}
	out := mk(pingBytes)
	out[0].hdr.Name, out[0].hdr.Namelen = (*byte)(unsafe.Pointer(&s.peer)), unix.SizeofSockaddrInet4
	return s.mover(unix.SYS_SENDMMSG, out), s.mover(unix.SYS_RECVMMSG, mk(2048))
}
