package tcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

const (
	maxBacklog = 4 << 20 // bytes of messages waiting to be sent to a peer
	maxInbox   = 16      // messages of a peer waiting for Events; further ones wait in the kernel
	grace      = 500 * time.Millisecond
	beats      = 5               // per Options.DeadAfter
	maxDrain   = 1 << 16         // maximum reads of the control connection of a failing peer
	parting    = 2 * time.Second // how long Close waits for peers to read
)

// A local is this member, as used by its peers.
type local struct {
	opt     Options
	run     uint64
	meeting meeting
	events  *queue
	ctx     context.Context // ends when the transport is closing
	wg      sync.WaitGroup
}

// A meeting is the bootstrap, as used by its peers.
type meeting interface {
	complete()      // a peer has met all members
	fail(err error) // a peer has given up or disconnected
}

// A peer is another member and the connections to it.
type peer struct {
	self *local
	id   int

	run   uint64 // set, with hello, before the peer is met
	hello []byte

	mu      sync.Mutex
	taken   bool  // a process is this peer, or is becoming it
	met     bool  // the control connection is established
	failing bool  // no new goroutines or sends
	err     error // first reason of the failure
	wg      sync.WaitGroup
	users   sync.WaitGroup  // goroutines that use callers' buffers; wg counts them, too
	ctx     context.Context // ends when the peer fails, which ends block connections
	stop    context.CancelFunc
	cut     chan struct{} // closed when the control connection ends

	control
	in   blocksIn
	out  blocksOut
	ring ring // root: to the peer; else, of peer 0: from it
}

// A control is the control connection.
type control struct {
	ctl     stream
	ctlDone chan struct{} // closed when its reader has ended
	// draining: the peer is failing, and the connection is still read, at most maxDrain times,
	// while each message arrives within the grace period.
	draining atomic.Bool
	drained  int
	tells    outbox
	frame    [frameHeader + rdmcfallback.MaxTell]byte
	inbox    chan []byte  // free buffers for messages
	buffers  int          // number of buffers
	silent   atomic.Int32 // own beats since anything was received
	held     atomic.Bool  // the reader waits for Events, so silence means nothing
}

// A blocksIn is the connection for blocks from the peer.
type blocksIn struct {
	conn    stream
	dialed  bool
	readies outbox
	posted  [MaxPosted][]byte // buffers nRecv...nPosted-1 are posted
	nPosted uint32
	nRecv   uint32
	ready   [countBytes]byte
}

// A blocksOut is the connection for blocks to the peer.
type blocksOut struct {
	conn    stream
	credits atomic.Int32 // number of blocks that the peer can still receive
	nSent   atomic.Uint32
	sends   chan send
}

type send struct {
	imm   uint32
	block []byte
}

func newPeer(self *local, id int) *peer {
	p := &peer{self: self, id: id, cut: make(chan struct{}), control: control{ctlDone: make(chan struct{}), inbox: make(chan []byte, maxInbox)},
		out: blocksOut{sends: make(chan send, MaxPosted)}}
	p.ctx, p.stop = context.WithCancel(self.ctx)
	lost := func(err error) { p.fail(err, true) }
	for _, o := range []*outbox{&p.tells, &p.in.readies, &p.ring.out} {
		o.lock, o.wg, o.lost = &p.mu, &p.wg, lost
	}
	return p
}

// useBuffers calls f in a goroutine that uses callers' buffers. The lock must be held, and the peer not be failing.
func (p *peer) useBuffers(f func()) {
	p.users.Add(1)
	p.wg.Go(func() {
		defer p.users.Done()
		f()
	})
}

// use calls f with the lock held, unless the peer is failing. If f returns lost, the peer fails.
func (p *peer) use(f func() (lost, err error)) error {
	p.mu.Lock()
	if p.failing {
		p.mu.Unlock()
		return nil
	}
	lost, err := f()
	p.mu.Unlock()
	if lost != nil {
		p.fail(lost, true)
	}
	return err
}

func (p *peer) isMet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met
}

// isHere reports whether the peer, which has been met, is on this machine, according to its
// address.
func (p *peer) isHere() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met && sameHost(p.ctl.LocalAddr(), p.ctl.RemoteAddr())
}

// sameHost reports whether two ends of a connection are on one host: they have the same address, or
// both have loopback addresses.
func sameHost(a, b net.Addr) bool {
	x, errX := netip.ParseAddrPort(a.String())
	y, errY := netip.ParseAddrPort(b.String())
	if errX != nil || errY != nil {
		return false
	}
	i, j := x.Addr().Unmap(), y.Addr().Unmap()
	return i == j || i.IsLoopback() && j.IsLoopback()
}

// meet starts to use the control connection.
func (p *peer) meet(ctl stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing {
		return ErrClosed
	}
	if err := p.tells.open(ctl, maxBacklog); err != nil {
		return err
	}
	p.ctl, p.met = ctl, true
	p.wg.Go(p.readControl)
	return nil
}

// tell sends a message on the control connection.
func (p *peer) tell(kind uint8, msg []byte) {
	_ = p.use(func() (lost, err error) {
		if !p.met {
			return nil, nil
		}
		putFrameHeader(p.frame[:], kind, len(msg))
		n := copy(p.frame[frameHeader:], msg)
		return p.tells.send(p.frame[:frameHeader+n]), nil
	})
}

// beat tells the peer that this member is alive, and ends the connection if nothing was received
// from the peer for several beats. It counts by its own beats, so that a member that was itself
// stopped does not blame a peer.
func (p *peer) beat() {
	p.mu.Lock()
	if !p.met || p.failing {
		p.mu.Unlock()
		return
	}
	var err error
	if p.tells.idle == nil { // otherwise there is enough in flight
		putFrameHeader(p.frame[:], frameAlive, 0)
		err = p.tells.send(p.frame[:frameHeader])
	}
	p.mu.Unlock()
	if err == nil && !p.held.Load() && p.silent.Add(1) > beats {
		err = ErrSilent
	}
	if err != nil {
		p.fail(err, true)
	}
}

// readControl reads the control connection until it ends.
func (p *peer) readControl() {
	r := bufio.NewReaderSize(p.ctl, 4096)
	err := p.readFrames(r)
	close(p.ctlDone)
	p.fail(err, false)
}

func (p *peer) readFrames(r *bufio.Reader) error {
	var header [frameHeader]byte
	completed := false
	for {
		if err := p.patience(); err != nil {
			return err
		}
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return err
		}
		kind, n, err := parseFrameHeader(header[:])
		if err != nil {
			return err
		}
		p.silent.Store(0)
		if kind == frameAlive {
			continue
		}
		if p.self.ctx.Err() != nil {
			if _, err := r.Discard(n); err != nil {
				return err
			}
			continue
		}
		buf, err := p.buffer()
		if err != nil {
			return err
		}
		buf = buf[:n]
		if err := p.patience(); err != nil {
			return err
		}
		if _, err := io.ReadFull(r, buf); err != nil {
			return err
		}
		if kind == frameTold {
			p.self.events.push(rdmcfallback.Event{Kind: rdmcfallback.EventTold, Peer: p.id, Msg: buf})
			continue
		}
		if kind == frameMet {
			if completed {
				return fmt.Errorf("%w: it met all members twice", ErrProtocol)
			}
			completed = true
			p.self.meeting.complete()
		} else {
			err := parseAbort(buf)
			p.self.meeting.fail(err)
			return err
		}
		p.giveBack(buf)
	}
}

// patience sets the deadline of the next read of the control connection. The time starts only now
// because the reader may have waited for Events.
func (p *peer) patience() error {
	if !p.draining.Load() {
		return nil
	}
	if p.drained++; p.drained > maxDrain {
		return net.ErrClosed
	}
	return p.ctl.SetReadDeadline(time.Now().Add(grace))
}

// buffer returns an empty buffer for a message. It waits if too many messages wait for Events.
func (p *peer) buffer() ([]byte, error) {
	select {
	case b := <-p.inbox:
		return b, nil
	default:
	}
	if p.buffers < maxInbox {
		p.buffers++
		return make([]byte, 0, rdmcfallback.MaxTell), nil
	}
	p.held.Store(true)
	defer p.held.Store(false)
	select {
	case b := <-p.inbox:
		p.silent.Store(0)
		return b, nil
	case <-p.cut:
		return nil, net.ErrClosed
	case <-p.self.ctx.Done():
		return make([]byte, 0, rdmcfallback.MaxTell), nil
	}
}

// giveBack returns a buffer. There is always room.
func (p *peer) giveBack(b []byte) {
	select {
	case p.inbox <- b[:0]:
	default:
	}
}

// fail ends all connections to the peer. If patient is true, it still reads the messages that the
// peer sent before, because the failure may have been noticed first on a block connection. When
// nothing of the peer is in use any more, Down follows. Only the first call has an effect.
func (p *peer) fail(err error, patient bool) {
	if !p.end(explain(err)) {
		return
	}
	go func() {
		defer p.self.wg.Done()
		if patient && p.ctl != nil {
			p.draining.Store(true)
			_ = p.ctl.SetReadDeadline(time.Now().Add(grace))
			select {
			case <-p.ctlDone:
			case <-p.self.ctx.Done():
			}
		}
		p.cutOff()
		p.self.meeting.fail(&memberError{p.id, p.self.opt.Members[p.id], p.err})
		p.self.events.push(rdmcfallback.Event{Kind: rdmcfallback.EventDown, Peer: p.id, Err: p.err})
	}()
}

// end ends the connections for blocks and small messages, and reports whether this is the first
// call. After that, no new operation of the peer starts. The first caller must call t.wg.Done
// later.
func (p *peer) end(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing {
		return false
	}
	p.failing, p.err = true, err
	p.self.wg.Add(1) // with the lock held, so that Close, which takes it, waits
	p.stop()
	closeConns(p.in.conn, p.out.conn, p.ring.conn)
	return true
}

// cutOff closes the control connection and waits until all goroutines of the peer
// have ended.
func (p *peer) cutOff() {
	close(p.cut)
	closeConns(p.ctl)
	p.wg.Wait()
}

// part follows end because this transport is closing: it gives the peer time to read what was sent.
func (p *peer) part() {
	defer p.self.wg.Done()
	if p.ctl != nil {
		_ = p.ctl.SetDeadline(time.Now().Add(parting))
		p.mu.Lock()
		idle := p.tells.idle
		p.mu.Unlock()
		if idle != nil {
			<-idle
		}
		if p.ctl.CloseWrite() == nil {
			wait(p.ctlDone, parting)
		}
	}
	p.cutOff()
}

func wait(done <-chan struct{}, most time.Duration) {
	select {
	case <-done:
	case <-time.After(most):
	}
}

func closeConns(conns ...stream) {
	for _, c := range conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

// explain converts the error that ended a connection to one of this package.
func explain(err error) error {
	switch {
	case errors.Is(err, ErrProtocol), errors.Is(err, ErrOverflow), errors.Is(err, ErrFailed), errors.Is(err, ErrSilent):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("the peer ended the connection: %w", err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the peer does not answer: %w", err)
	}
	return fmt.Errorf("the connection to the peer ended: %w", err)
}
