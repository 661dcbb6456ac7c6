package watch

import (
	"errors"
	"net"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Watcher watches a process and its successors.
type Watcher struct {
	listener *net.UnixListener
	kill     func()
	synced   func(pid, fd int) error // nil: not requested
	serving  sync.WaitGroup
	closed   chan struct{}

	mu     sync.Mutex
	writes int // since Listen
	left   int // writes until the kill, 0: none
	hold   time.Duration
	died   chan struct{}
}

// Listen makes a watcher for processes that call Exec with that socket. kill kills the watched
// process; it may return before the process has ended.
func Listen(socket string, kill func()) (*Watcher, error) { return listen(socket, kill, nil) }

// Syncs calls synced before each fsync and fdatasync of such processes, which continues when synced
// has returned; if synced fails, the process is killed instead.
func Syncs(socket string, kill func(), synced func(pid, fd int) error) (*Watcher, error) {
	return listen(socket, kill, synced)
}

func listen(socket string, kill func(), synced func(pid, fd int) error) (*Watcher, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	w := &Watcher{listener: l, kill: kill, synced: synced, closed: make(chan struct{})}
	w.serving.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			if fd, err := received(c); err == nil {
				w.serving.Go(func() { w.serve(fd) })
			}
			_ = c.Close()
		}
	})
	return w, nil
}

// received returns the received descriptor.
func received(c *net.UnixConn) (int, error) {
	space := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), space)
	if err != nil {
		return 0, err
	}
	list, err := unix.ParseSocketControlMessage(space[:n])
	if err != nil || len(list) != 1 {
		return 0, errors.Join(err, errors.New("not one message"))
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) != 1 {
		return 0, errors.Join(err, errors.New("not one descriptor"))
	}
	return fds[0], nil
}

// Arm kills the process before its n-th durable write from now on, which has taken some time by
// then, as on a slow disk. The channel is closed at the kill.
func (w *Watcher) Arm(n int, hold time.Duration) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left, w.hold, w.died = n, hold, make(chan struct{})
	return w.died
}

// Disarm cancels that, and reports whether it is in time: the kill may have begun.
func (w *Watcher) Disarm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	lives := w.left > 0
	w.left = 0
	return lives
}

// Writes returns the number of durable writes begun since Listen.
func (w *Watcher) Writes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes
}

// Close releases the processes, which must end: their next durable write fails.
func (w *Watcher) Close() error {
	close(w.closed)
	err := w.listener.Close()
	w.serving.Wait()
	return err
}

// The kernel's requests, and the answers.
type (
	question struct {
		id         uint64
		pid, flags uint32
		data       struct {
			nr   int32
			arch uint32
			ip   uint64
			args [6]uint64
		}
	}
	answer struct {
		id    uint64
		val   int64
		err   int32
		flags uint32
	}
)

// often is how often serve checks whether it must end, in ms.
const often = 100

// serve answers for a process until it has ended.
func (w *Watcher) serve(fd int) {
	defer unix.Close(fd)
	for {
		select {
		case <-w.closed:
			return
		default:
		}
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
		n, err := unix.Poll(poll, often)
		switch {
		case n == 0 || errors.Is(err, unix.EINTR):
			continue
		case err != nil || poll[0].Revents&unix.POLLIN == 0:
			return // all its threads have ended
		}
		var q question
		if !control(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&q)) { //nolint:gosec // the kernel's structure
			continue // the thread was killed meanwhile
		}
		if q.data.nr == unix.SYS_FDATASYNC && w.last() {
			continue // never to be answered
		}
		if w.synced != nil && w.synced(int(q.pid), int(q.data.args[0])) != nil { //nolint:gosec // a process and its descriptor
			w.kill()
			continue
		}
		a := answer{id: q.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		control(fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a)) //nolint:gosec // the kernel's structure
	}
}

// last counts a write, and kills the process if it must not do it.
func (w *Watcher) last() bool {
	w.mu.Lock()
	w.writes++
	if w.left == 0 {
		w.mu.Unlock()
		return false
	}
	w.left--
	now, hold, died := w.left == 0, w.hold, w.died
	w.mu.Unlock()
	if now {
		time.Sleep(hold)
		w.kill()
		close(died)
	}
	return now
}

func control(fd int, request uintptr, arg unsafe.Pointer) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)) //nolint:gosec // a descriptor
	return errno == 0
}
