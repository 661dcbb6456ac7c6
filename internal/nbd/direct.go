package nbd

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// A direct reads and writes a socket by nonblocking system calls of which the scheduler is not
// notified. The first notified call after all threads were idle would wake the runtime's monitor,
// which then wakes every 20 µs. A connection has one reader, and only one goroutine at a time may
// call atOnce.
type direct struct {
	net.Conn
	fd        syscall.RawConn
	in, out   transfer
	read      func(fd uintptr) bool
	writeOnce func(fd uintptr)
}

// A transfer is the state of one system call.
type transfer struct {
	bytes []byte
	n     int
	errno syscall.Errno
}

// newDirect returns c itself if c is not a socket.
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

// CloseWrite closes the write side of the connection.
func (d *direct) CloseWrite() error {
	if h, ok := d.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// atOnce writes what fits without waiting, and returns its length. If it could not write all, the
// next Write returns the error.
func (d *direct) atOnce(b []byte) int {
	d.out.bytes = b
	err := d.fd.Control(d.writeOnce)
	d.out.bytes = nil
	if err != nil || d.out.errno != 0 {
		return 0
	}
	return d.out.n
}
