// Package memnet is a network in memory: connections between the processes of several
// hosts, which can be cut, silenced and killed. All waiting is durable in a bubble of
// testing/synctest, so tests over it run in virtual time.
package memnet

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Network has all connections between the processes of a lab, in memory. A process is
// named "host/part"; killing it closes its connections, as the kernel does.
type Network struct {
	mu        sync.Mutex
	changed   chan struct{} // closed when a host has become silent, or no longer is
	addrs     map[string]netip.Addr
	listeners map[string]*listener // by address
	wires     map[*wire]struct{}
	silent    map[string]bool    // hosts
	dead      map[string]bool    // processes
	barred    map[[2]string]bool // which process is refused at which address
	port      uint16             // the last one
	users     map[string]uint32  // of processes; others are DefaultUser's
}

// New makes an empty network.
func New() *Network {
	return &Network{changed: make(chan struct{}), addrs: map[string]netip.Addr{}, listeners: map[string]*listener{},
		wires: map[*wire]struct{}{}, silent: map[string]bool{}, dead: map[string]bool{}, barred: map[[2]string]bool{}, users: map[string]uint32{}}
}

// DefaultUser is the user of processes for which SetUser says nothing else.
const DefaultUser = 1000

// SetUser says which user a process is of.
func (n *Network) SetUser(process string, uid uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.users[process] = uid
}

func hostOf(process string) string {
	host, _, _ := strings.Cut(process, "/")
	return host
}

// Addr is a host's address for connections; all are loopback addresses, which plain text
// asks for.
func (n *Network) Addr(host string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, ok := n.addrs[host]
	if !ok {
		a = netip.AddrFrom4([4]byte{127, 77, 0, byte(len(n.addrs) + 1)})
		n.addrs[host] = a
	}
	return a
}

// Listen listens at an address, or at the path of a socket. Port 0 is a free one.
func (n *Network) Listen(process, address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if host, ok := strings.CutSuffix(address, ":0"); ok {
		n.port++
		address = fmt.Sprintf("%s:%d", host, 20000+n.port)
	}
	var at net.Addr = &net.UnixAddr{Net: "unix", Name: address}
	if a, err := netip.ParseAddrPort(address); err == nil {
		at = net.TCPAddrFromAddrPort(a)
	}
	if n.dead[process] || n.listeners[address] != nil {
		return nil, &net.OpError{Op: "listen", Net: at.Network(), Addr: at, Err: syscall.EADDRINUSE}
	}
	l := &listener{n: n, at: at, process: process, queue: make(chan *conn, 64), closed: make(chan struct{})}
	n.listeners[address] = l
	return l, nil
}

// Dial connects a process with the process that listens at an address. It waits as long as one of
// the hosts is silent.
func (n *Network) Dial(ctx context.Context, process, address string) (net.Conn, error) {
	for {
		c, wait, err := n.connect(process, address)
		if wait == nil {
			return c, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: timeout{}}
		}
	}
}

func (n *Network) connect(process, address string) (_ net.Conn, wait <-chan struct{}, _ error) {
	from := n.Addr(hostOf(process))
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[address]
	switch {
	case n.silent[hostOf(process)] || l != nil && n.silent[hostOf(l.process)]:
		return nil, n.changed, nil
	case n.dead[process] || l == nil || n.barred[[2]string{process, address}]:
		return nil, nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	n.port++
	w := &wire{n: n}
	if hostOf(process) != hostOf(l.process) {
		w.Latency = Latency
	}
	w.moved.L = &w.mu
	local := net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 20000+n.port))
	w.ends[0] = &conn{w: w, far: 1, process: process, local: local, remote: l.at}
	w.ends[1] = &conn{w: w, far: 0, process: l.process, local: l.at, remote: local}
	select {
	case l.queue <- w.ends[1]:
	default:
		return nil, nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	n.wires[w] = struct{}{}
	return w.ends[0], nil, nil
}

// timeout is a dial's that had no answer.
type timeout struct{}

func (timeout) Error() string   { return "i/o timeout" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }
func (timeout) Unwrap() error   { return os.ErrDeadlineExceeded }

// Silence has nothing come from a host or get to it, or ends that. What was sent meanwhile
// comes then, as TCP sends it again.
func (n *Network) Silence(host string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent[host] = on
	close(n.changed)
	n.changed = make(chan struct{})
	for w := range n.wires {
		w.hold(n.silent[hostOf(w.ends[0].process)] || n.silent[hostOf(w.ends[1].process)])
	}
}

// Bar has a process be refused at an address, or ends that.
func (n *Network) Bar(process, address string, on bool) {
	n.mu.Lock()
	n.barred[[2]string{process, address}] = on
	var list []io.Closer
	for w := range n.wires {
		if c := w.ends[0]; on && c.process == process && c.remote.String() == address {
			list = append(list, c)
		}
	}
	n.mu.Unlock()
	for _, c := range list {
		_ = c.Close()
	}
}

// Reset breaks a process's connections; it may make new ones.
func (n *Network) Reset(process string) {
	for _, c := range n.conns(process) {
		_ = c.Close()
	}
}

// Break breaks the connections between two processes; they may make new ones.
func (n *Network) Break(a, b string) {
	n.mu.Lock()
	var list []io.Closer
	for w := range n.wires {
		if x, y := w.ends[0], w.ends[1]; x.process == a && y.process == b || x.process == b && y.process == a {
			list = append(list, x)
		}
	}
	n.mu.Unlock()
	for _, c := range list {
		_ = c.Close()
	}
}

// conns are a process's ends of connections.
func (n *Network) conns(process string) (list []io.Closer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.wires {
		for _, c := range w.ends {
			if c.process == process {
				list = append(list, c)
			}
		}
	}
	return list
}

// Kill ends a process's connections and listeners; it makes no new ones until Revive.
func (n *Network) Kill(process string) {
	n.mu.Lock()
	n.dead[process] = true
	var list []io.Closer
	for _, l := range n.listeners {
		if l.process == process {
			list = append(list, l)
		}
	}
	n.mu.Unlock()
	for _, c := range append(list, n.conns(process)...) {
		_ = c.Close()
	}
}

// Revive lets a killed process make connections again.
func (n *Network) Revive(process string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead[process] = false
}

type listener struct {
	n       *Network
	at      net.Addr
	process string
	queue   chan *conn
	closed  chan struct{}
	once    sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: l.at.Network(), Addr: l.at, Err: net.ErrClosed}
	}
}

func (l *listener) Addr() net.Addr { return l.at }

func (l *listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		err = nil
		l.n.mu.Lock()
		delete(l.n.listeners, l.at.String())
		close(l.closed)
		l.n.mu.Unlock()
		for {
			select {
			case c := <-l.queue:
				_ = c.Close()
				continue
			default:
			}
			return
		}
	})
	return err
}

// A wire is a connection.
type wire struct {
	n       *Network
	mu      sync.Mutex
	moved   sync.Cond
	held    bool // nothing gets through
	Latency time.Duration
	ends    [2]*conn
}

func (w *wire) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moved.Broadcast()
}

func (w *wire) hold(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = on
	w.moved.Broadcast()
}

// Latency is how long what is written to another host is on its way. Within a host it takes no
// time: an agent waits for its switch with locks held, and while one goroutine waits for a
// sync.Mutex, the time of a bubble stands still.
const Latency = 500 * time.Microsecond

// room is what a connection holds on its way.
const room = 256 << 10

// A conn is one end of a wire, under the wire's lock.
type conn struct {
	w             *wire
	far           int // of ends
	process       string
	local, remote net.Addr

	in             []chunk // on the way to this end
	size           int     // of it, bytes
	done           bool    // nothing more follows it
	closed         bool
	readBy, sendBy deadline
}

// A chunk is what was written at once, and when it arrives.
type chunk struct {
	b  []byte
	at time.Time
}

// A deadline wakes who waits for it.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) set(w *wire, t time.Time) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.at = t; !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), w.wake)
	}
	w.moved.Broadcast()
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (c *conn) fault(op string, err error) error {
	return &net.OpError{Op: op, Net: c.local.Network(), Source: c.local, Addr: c.remote, Err: err}
}

func (c *conn) Read(b []byte) (int, error) {
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, c.fault("read", net.ErrClosed)
		case c.readBy.passed():
			return 0, c.fault("read", os.ErrDeadlineExceeded)
		case w.held:
		case len(c.in) > 0:
			if time.Now().Before(c.in[0].at) {
				break
			}
			n := copy(b, c.in[0].b)
			if c.in[0].b = c.in[0].b[n:]; len(c.in[0].b) == 0 {
				c.in = c.in[1:]
			}
			c.size -= n
			w.moved.Broadcast()
			return n, nil
		case c.done:
			return 0, io.EOF
		}
		w.moved.Wait()
	}
}

func (c *conn) Write(b []byte) (n int, err error) {
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	far := w.ends[c.far]
	for {
		switch {
		case c.closed || far.done:
			return n, c.fault("write", net.ErrClosed)
		case far.closed && !w.held:
			return n, c.fault("write", syscall.EPIPE)
		case c.sendBy.passed():
			return n, c.fault("write", os.ErrDeadlineExceeded)
		}
		if k := min(len(b), room-far.size); k > 0 {
			far.in = append(far.in, chunk{slices.Clone(b[:k]), time.Now().Add(w.Latency)})
			far.size += k
			b, n = b[k:], n+k
			if w.Latency > 0 {
				time.AfterFunc(w.Latency, w.wake)
			} else {
				w.moved.Broadcast()
			}
		}
		if len(b) == 0 {
			return n, nil
		}
		w.moved.Wait()
	}
}

func (c *conn) CloseWrite() error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.w.ends[c.far].done = true
	c.w.moved.Broadcast()
	return nil
}

func (c *conn) Close() error {
	w := c.w
	w.mu.Lock()
	if c.closed {
		w.mu.Unlock()
		return c.fault("close", net.ErrClosed)
	}
	c.closed = true
	far := w.ends[c.far]
	far.done = true
	c.readBy.set(w, time.Time{})
	c.sendBy.set(w, time.Time{})
	over := far.closed
	w.mu.Unlock()
	if over {
		w.n.mu.Lock()
		delete(w.n.wires, w)
		w.n.mu.Unlock()
	}
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// PeerCred is the user and the number of the process at the other end.
func (c *conn) PeerCred() (uid, pid uint32) {
	c.w.n.mu.Lock()
	defer c.w.n.mu.Unlock()
	uid, ok := c.w.n.users[c.w.ends[c.far].process]
	if !ok {
		uid = DefaultUser
	}
	return uid, 1
}

func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.readBy.set(c.w, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.sendBy.set(c.w, t)
	return nil
}
