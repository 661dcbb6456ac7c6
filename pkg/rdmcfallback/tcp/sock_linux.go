package tcp

import (
	"net"
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
func setDeadAfter(c *net.TCPConn, after time.Duration) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return setsockopt(raw, tcpUserTimeout, int(after/time.Millisecond))
}

// setUnsent makes a connection take no more while more than n bytes haven't been
// passed on to the network.
func setUnsent(c *net.TCPConn, n int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return setsockopt(raw, tcpNotsentLowat, n)
}

func setsockopt(raw syscall.RawConn, option, value int) error {
	var result error
	err := raw.Control(func(fd uintptr) {
		result = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, option, value)
	})
	if err != nil {
		return err
	}
	return result
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
