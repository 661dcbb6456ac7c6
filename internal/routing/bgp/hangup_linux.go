package bgp

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// hangUp shuts down the sending side of all sessions' connections, so that the peers see them
// closed. GoBGP has no way to end a session without a NOTIFICATION and does not expose its sockets,
// so hangUp finds them among the open files of the process. Until release is called, the sockets
// also receive nothing: otherwise GoBGP would see some sessions end, and withdraw their routes over
// those that have not ended yet.
func (s *Source) hangUp() (release func(), err error) {
	sockets, err := s.sockets()
	release = func() {
		for _, fd := range sockets {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) // unless it has ended
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		return release, hangUpError(err)
	}
	nothing := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	for _, fd := range sockets {
		err = errors.Join(err, ended(unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing})))
	}
	for _, fd := range sockets {
		err = errors.Join(err, ended(unix.Shutdown(fd, unix.SHUT_WR)))
	}
	if err != nil {
		return release, hangUpError(err)
	}
	return release, nil
}

// errHangUp is wrapped by errors of Suspend after which the peers notice that the speaker leaves.
var errHangUp = errors.New("bgp: the connections cannot be ended silently")

func hangUpError(err error) error { return fmt.Errorf("%w: %w", errHangUp, err) }

// ended ignores the error of a connection that has already ended.
func ended(err error) error {
	if errors.Is(err, unix.ENOTCONN) {
		return nil
	}
	return err
}

// sockets returns duplicates of the sessions' sockets. A file descriptor may be reused for another
// file at any time; a duplicate keeps referring to the same one.
func (s *Source) sockets() (list []int, err error) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		n, err := strconv.Atoi(f.Name())
		if err != nil {
			continue
		}
		fd, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0) //nolint:gosec // not negative
		if err != nil {
			continue // closed meanwhile
		}
		if local, remote, ok := ends(fd); ok && s.holds(local, remote) {
			list = append(list, fd)
			continue
		}
		_ = unix.Close(fd)
	}
	return list, nil
}

// holds reports whether a connection between two addresses belongs to a session.
func (s *Source) holds(local, remote netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.peer[remote.Addr()]
	if !ok || p.Local.IsValid() && p.Local != local.Addr() {
		return false
	}
	return remote.Port() == cmp.Or(p.Port, Port) || s.cfg.ListenPort != 0 && local.Port() == s.cfg.ListenPort
}

// ends returns the addresses of a TCP connection, and false if fd is not one.
func ends(fd int) (local, remote netip.AddrPort, ok bool) {
	if p, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || p != unix.IPPROTO_TCP {
		return local, remote, false
	}
	l, err := unix.Getsockname(fd)
	if err != nil {
		return local, remote, false
	}
	r, err := unix.Getpeername(fd)
	if err != nil {
		return local, remote, false
	}
	local, remote = addrPort(l), addrPort(r)
	return local, remote, local.IsValid() && remote.IsValid()
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)) //nolint:gosec // of 16 bits
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port)) //nolint:gosec // of 16 bits
	}
	return netip.AddrPort{}
}
