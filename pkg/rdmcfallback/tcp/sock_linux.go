package tcp

import (
	"cmp"
	"syscall"
	"time"
)

// Socket options of Linux that package syscall does not define; see tcp(7).
const (
	tcpUserTimeout  = 18
	tcpNotsentLowat = 25
)

// setDeadAfter makes the kernel end a connection whose peer does not acknowledge or accept data for
// this long.
func setDeadAfter(c stream, after time.Duration) error {
	return setOption(c, tcpUserTimeout, int(after/time.Millisecond))
}

// setUnsent makes a connection accept no more data while more than n bytes have not been passed to
// the network.
func setUnsent(c stream, n int) error { return setOption(c, tcpNotsentLowat, n) }

// setOption sets a socket option of a connection that has a file descriptor.
func setOption(c stream, option, value int) error {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Control(func(fd uintptr) {
		result = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, option, value)
	})
	return cmp.Or(err, result)
}

// tryWrite writes as much as possible without waiting.
func tryWrite(fd uintptr, b []byte) (int, error) {
	for {
		n, err := syscall.Write(int(fd), b)
		switch err {
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, nil
		default:
			return max(n, 0), err
		}
	}
}
