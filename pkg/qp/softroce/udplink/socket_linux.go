package udplink

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A socket is a socket that is used without blocking in system calls. Only one
// that is polled is known to the Go runtime's poller, and can be waited for.
type socket struct {
	file   *os.File
	conn   syscall.RawConn
	missed uint64 // drops before the socket was ready
}

// newSocket opens a socket, sets it up by f and closes it again if f fails.
func newSocket(typ, proto int, f func(fd int) error) (*socket, error) {
	fd, err := unix.Socket(unix.AF_INET, typ|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := f(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	s, err := wrap(fd)
	if err != nil {
		return nil, err
	}
	s.missed = s.drops()
	return s, nil
}

// wrap makes a socket of fd. The poller gets to know it if it is in
// non-blocking mode.
func wrap(fd int) (*socket, error) {
	file := os.NewFile(uintptr(fd), "udplink")
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	return &socket{file: file, conn: conn}, nil
}

// polled returns a second descriptor of the socket that the poller knows.
func (s *socket) polled() (*socket, error) {
	dup := -1
	if err := s.control(func(fd int) (err error) {
		if dup, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return os.NewSyscallError("fcntl", err)
		}
		return os.NewSyscallError("fcntl", unix.SetNonblock(dup, true))
	}); err != nil {
		if dup >= 0 {
			unix.Close(dup)
		}
		return nil, err
	}
	return wrap(dup)
}

// openUDP opens an unconnected UDP socket that sends with Don't Fragment and
// therefore with identification 0. Port 0 means any.
func openUDP(addr [4]byte, port int) (*socket, error) {
	return newSocket(unix.SOCK_DGRAM, unix.IPPROTO_UDP, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO); err != nil {
			return os.NewSyscallError("setsockopt IP_MTU_DISCOVER", err)
		}
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: addr}))
	})
}

// openRaw opens a raw socket that sees the UDP packets to port 4791 of addr.
// Before it is bound it sees all of the host's UDP packets: a filter first
// blocks all packets, and those received until then are discarded.
func openRaw(addr [4]byte) (*socket, error) {
	return newSocket(unix.SOCK_RAW, unix.IPPROTO_UDP, func(fd int) error {
		if err := attach(fd, dropAll); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: addr}); err != nil {
			return os.NewSyscallError("bind", err)
		}
		for {
			if _, _, err := unix.Recvfrom(fd, nil, unix.MSG_DONTWAIT|unix.MSG_TRUNC); err != nil {
				break
			}
		}
		return attach(fd, roceOnly)
	})
}

// roceOnly passes packets to UDP port 4791; a raw socket's filter sees the
// packet from its IP header on.
var roceOnly = []bpf.Instruction{
	bpf.LoadMemShift{Off: 0},
	bpf.LoadIndirect{Off: 2, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: rocev2.UDPPort, SkipFalse: 1},
	bpf.RetConstant{Val: 1 << 18},
	bpf.RetConstant{Val: 0},
}

var dropAll = []bpf.Instruction{bpf.RetConstant{Val: 0}}

func attach(fd int, prog []bpf.Instruction) error {
	raw, err := bpf.Assemble(prog)
	if err != nil {
		return fmt.Errorf("udplink: filter: %w", err)
	}
	f := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		f[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER",
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}))
}

func (s *socket) control(f func(fd int) error) error {
	var ferr error
	if err := s.conn.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

func (s *socket) setInt(level, name, v int) error {
	return s.control(func(fd int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, name, v))
	})
}

func (s *socket) filter(prog []bpf.Instruction) error {
	return s.control(func(fd int) error { return attach(fd, prog) })
}

func (s *socket) getInt(level, name int) (n int, err error) {
	cerr := s.control(func(fd int) error {
		n, err = unix.GetsockoptInt(fd, level, name)
		return err
	})
	return n, cerr
}

// setBuffer sets SO_RCVBUF or SO_SNDBUF to n bytes, past the system's limit if
// that is allowed. A smaller buffer than asked for is no error.
func (s *socket) setBuffer(name, n int) {
	force := unix.SO_RCVBUFFORCE
	if name == unix.SO_SNDBUF {
		force = unix.SO_SNDBUFFORCE
	}
	if s.setInt(unix.SOL_SOCKET, force, n) != nil {
		_ = s.setInt(unix.SOL_SOCKET, name, n)
	}
}

// drops returns how many packets the kernel dropped because the socket's
// buffer was full.
func (s *socket) drops() uint64 {
	var info [unix.SK_MEMINFO_VARS]uint32
	err := s.control(func(fd int) error { return getMemInfo(fd, &info) })
	if err != nil {
		return 0
	}
	return uint64(info[unix.SK_MEMINFO_DROPS]) - s.missed
}

// close closes the socket, if there is one. A receive that waits returns: a
// socket that is shut down wakes it up, also a datagram socket, for which
// shutdown itself reports ENOTCONN.
func (s *socket) close() {
	if s != nil {
		_ = s.control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RD) })
		s.file.Close()
	}
}

// closedErr maps whatever a system call or the runtime's poller reports after
// Close.
func (l *Link) closedErr(err error) error {
	if err != nil && l.closing.Load() {
		return net.ErrClosed
	}
	return err
}
