package nbd

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// A direct reads and writes a socket by calls that do not wait, of which the scheduler is not told: with the first one after
// all threads were idle it would wake the runtime's monitor, which then wakes every 20 µs. A connection has one reader, and
// atOnce is for one goroutine at a time.
type direct struct {
	net.Conn
	fd        syscall.RawConn
	in, out   transfer
	read      func(fd uintptr) bool
	writeOnce func(fd uintptr)
}

// A transfer is one call.
type transfer struct {
	bytes []byte
	n     int
	errno syscall.Errno
}

// newDirect returns c itself if it is no socket.
func newDirect(c net.Conn) net.Conn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return c
	}
	fd, err := s.SyscallConn()
	if err != nil {
		return c
	}
	d := &direct{Conn: c, fd: fd}
	d.read = func(fd uintptr) bool {
		d.in.call(syscall.SYS_RECVFROM, fd)
		return d.in.errno != syscall.EAGAIN
	}
	d.writeOnce = func(fd uintptr) { d.out.call(syscall.SYS_SENDTO, fd) }
	return d
}

func (t *transfer) call(trap, fd uintptr) {
	for {
		n, _, errno := syscall.RawSyscall6(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.bytes))), uintptr(len(t.bytes)), syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
		if t.n, t.errno = int(n), errno; errno != syscall.EINTR { //nolint:gosec // at most len
			return
		}
	}
}

// Read implements net.Conn.
func (d *direct) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	d.in.bytes = p
	err := d.fd.Read(d.read)
	d.in.bytes = nil
	switch {
	case err != nil:
		return 0, err
	case d.in.errno != 0:
		return 0, os.NewSyscallError("recvfrom", d.in.errno)
	case d.in.n == 0:
		return 0, io.EOF
	}
	return d.in.n, nil
}

// CloseWrite ends this side of the connection.
func (d *direct) CloseWrite() error {
	if h, ok := d.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// atOnce writes what can be written without waiting. If that is not all, the next Write says why.
func (d *direct) atOnce(b []byte) int {
	d.out.bytes = b
	err := d.fd.Control(d.writeOnce)
	d.out.bytes = nil
	if err != nil || d.out.errno != 0 {
		return 0
	}
	return d.out.n
}
