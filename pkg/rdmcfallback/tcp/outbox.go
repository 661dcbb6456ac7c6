package tcp

import (
	"fmt"
	"sync"
	"syscall"
)

// An outbox writes small messages to a connection: at once if the kernel accepts them, else by a
// goroutine that lives while there is a backlog. Messages sent before there is a connection wait,
// too. open and send must be called with its lock, which is its peer's, held.
type outbox struct {
	lock sync.Locker
	wg   *sync.WaitGroup // of its goroutine
	lost func(error)     // called without the lock if the connection breaks

	conn    stream
	raw     syscall.RawConn // nil: the goroutine writes all
	limit   int             // maximum bytes in the backlog
	backlog []byte
	spare   []byte        // buffer of the previous backlog
	idle    chan struct{} // closed when the goroutine ends; nil if there is none

	msg []byte // message that attempt writes
	n   int
	err error
	// attempt is the function that raw calls, created once to avoid an allocation per message.
	attempt func(fd uintptr) bool
}

func (o *outbox) open(conn stream, limit int) (err error) {
	if c, ok := conn.(syscall.Conn); ok {
		if o.raw, err = c.SyscallConn(); err != nil {
			return err
		}
	}
	o.conn, o.limit = conn, limit
	o.attempt = func(fd uintptr) bool {
		o.n, o.err = tryWrite(fd, o.msg)
		return true
	}
	if len(o.backlog) > 0 {
		o.start()
	}
	return nil
}

// send writes msg, and adds what the kernel does not accept to the backlog. The lock must be held.
func (o *outbox) send(msg []byte) error {
	if o.idle == nil && o.raw != nil {
		o.msg, o.n = msg, 0
		err := o.raw.Write(o.attempt)
		if err == nil {
			err = o.err
		}
		if o.msg = nil; err != nil {
			return err
		}
		if msg = msg[o.n:]; len(msg) == 0 {
			return nil
		}
	}
	if len(o.backlog)+len(msg) > o.limit {
		return fmt.Errorf("%w: %d bytes wait", ErrOverflow, len(o.backlog))
	}
	o.backlog = append(o.backlog, msg...)
	if o.idle == nil && o.conn != nil {
		o.start()
	}
	return nil
}

func (o *outbox) start() {
	o.idle = make(chan struct{})
	o.wg.Go(o.flush)
}

// flush writes the backlog until it is empty.
func (o *outbox) flush() {
	o.lock.Lock()
	for len(o.backlog) > 0 {
		chunk := o.backlog
		o.backlog = o.spare[:0]
		o.lock.Unlock()
		_, err := o.conn.Write(chunk)
		if err != nil {
			o.lost(err)
		}
		o.lock.Lock()
		o.spare = chunk
		if err != nil {
			o.backlog = nil
		}
	}
	close(o.idle)
	o.idle = nil
	o.lock.Unlock()
}
