package tcp

import (
	"cmp"
	"syscall"
	"time"
)

// Options of Linux that package syscall doesn't name; see tcp(7).
const (
	tcpUserTimeout  = 18
	tcpNotsentLowat = 25
)

// setDeadAfter makes the kernel end a connection whose peer doesn't acknowledge or
// take what was sent for this long.
func setDeadAfter(c stream, after time.Duration) error {
	return setOption(c, tcpUserTimeout, int(after/time.Millisecond))
}

// setUnsent makes a connection take no more while more than n bytes haven't been passed on
// to the network.
func setUnsent(c stream, n int) error { return setOption(c, tcpNotsentLowat, n) }

// setOption sets an option of a connection that the kernel has.
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

// tryWrite writes what it can without waiting.
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
