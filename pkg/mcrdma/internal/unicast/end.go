package unicast

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A Message is one that came.
type Message struct {
	Kind qp.Opcode // OpSend, OpSendImm or OpWriteImm
	Imm  uint32
	N    int    // bytes that came
	Data []byte // of a SEND
}

// A Region is what the sender may write and read at a member.
type Region struct {
	Bytes []byte
	MR    qp.MR // nil: there is no device
}

// A Config is what an End needs.
type Config struct {
	Member  bool // this is the member's end
	Device  qp.Device
	PD      qp.PD // nil: there is no device
	Window  int   // operations that are posted at a time
	SGEs    int   // entries of an operation
	Timeout uint8 // exponent of the ACK timeout, of the sender
	// Lengths are those of the regions that the sender may name.
	Lengths []uint64
	Regions []Region // of a member
	// Deliver is given the messages, in their order, by one goroutine. The application's taking one is
	// told to Took.
	Deliver func(Message)
	// Sync orders what the application does with regions and what this end does with them.
	Sync func()
}

// An End is one end of a unicast connection. It outlives the connections by which it is made. All
// methods may be called by any goroutine.
type End struct {
	cfg Config

	mu     sync.Mutex
	core   Core
	link   link                    // nil: not connected
	calls  uint64                  // of carry; the last one has the turn next
	cut    context.CancelCauseFunc // ends the connection; nil: there is none
	heard  chan struct{}           // closed when the peer's counters have changed
	closed chan struct{}
	err    error // why it is closed

	turn chan struct{} // has a token while a connection is carried
}

// A link is what carries a connection.
type link interface {
	// post and tell begin to send; calls come one after the other, under the end's lock.
	post(op *Op) error
	tell(b Board) error
	// sync orders what the peer has written before what the caller does next.
	sync()
	// run carries the connection until it fails, or ctx ends. When it returns, nothing uses the
	// operations' memory, nor the regions.
	run(ctx context.Context) error
}

// NewEnd makes an end without a connection.
func NewEnd(cfg Config) *End {
	return &End{cfg: cfg, core: Core{Window: cfg.Window}, heard: make(chan struct{}), closed: make(chan struct{}), turn: make(chan struct{}, 1)}
}

// ErrLost says that the connection was lost, or could not be made. What was under way may have taken effect.
var ErrLost = errors.New("the unicast connection is lost")

var errReplaced = errors.New("another connection took its place")

// patience is how long making a connection may take.
const patience = 5 * time.Second

// Dial carries the sender's end over a new connection, to the member with that address and secret. It
// returns why it ended, or could not be made.
func (e *End) Dial(ctx context.Context, conn net.Conn, addr netip.Addr, secret Secret) error {
	return e.carry(ctx, conn, func(mine Hello, q *rdma) (link, error) {
		mine.Secret, mine.Timeout = secret, e.cfg.Timeout
		if err := writeHello(conn, mine, nil); err != nil {
			return nil, err
		}
		h, err := ReadHello(conn)
		if err != nil {
			return nil, fmt.Errorf("the member has ended, or is another one: %w", err)
		}
		if int(h.Regions) != len(e.cfg.Lengths) {
			return nil, fmt.Errorf("%w: it has %d regions, and granted %d", ErrPeer, h.Regions, len(e.cfg.Lengths))
		}
		regions, err := readRegions(conn, h.Regions)
		if err != nil {
			return nil, err
		}
		for i, r := range regions {
			if r.Length < e.cfg.Lengths[i] {
				return nil, fmt.Errorf("%w: region %d has %d bytes, and %d were granted", ErrPeer, i, r.Length, e.cfg.Lengths[i])
			}
		}
		l := e.choose(conn, q, h)
		if q, ok := l.(*rdma); ok {
			q.remote = regions
			err = q.connect(mine, h, addr, e.cfg.Timeout)
		}
		if err == nil {
			_, err = conn.Write([]byte{0})
		}
		return l, err
	})
}

// Serve carries the member's end over a connection that a sender with that address has made. h is what
// ReadHello has read from it. It returns why it ended.
func (e *End) Serve(ctx context.Context, conn net.Conn, h Hello, addr netip.Addr) error {
	return e.carry(ctx, conn, func(mine Hello, q *rdma) (link, error) {
		var regions []Remote
		for _, r := range e.cfg.Regions {
			at := Remote{Length: uint64(len(r.Bytes))}
			if r.MR != nil {
				at.VA, at.RKey = r.MR.Addr(), r.MR.RKey()
			}
			regions = append(regions, at)
		}
		l := e.choose(conn, q, h)
		if q, ok := l.(*rdma); ok {
			if err := q.connect(mine, h, addr, h.Timeout); err != nil {
				return nil, err
			}
		}
		if err := writeHello(conn, mine, regions); err != nil {
			return nil, err
		}
		_, err := conn.Read(make([]byte, 1))
		return l, err
	})
}

// choose returns the queue pair, if both have one, and else a link over TCP.
func (e *End) choose(conn net.Conn, q *rdma, peer Hello) link {
	if q != nil && peer.QPN != 0 {
		return q
	}
	return newStream(e, conn)
}

// carry makes a connection and carries it, in place of the one before, and of those that wait for its end.
func (e *End) carry(ctx context.Context, conn net.Conn, meet func(mine Hello, q *rdma) (link, error)) (err error) {
	defer conn.Close()
	e.mu.Lock()
	e.calls++
	call := e.calls
	if e.cut != nil {
		e.cut(errReplaced)
	}
	e.mu.Unlock()
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.closed:
		return e.Err()
	}
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	e.mu.Lock()
	if e.cut, err = cut, e.err; e.calls != call {
		err = errReplaced
	}
	e.mu.Unlock()
	if err != nil {
		<-e.turn
		return err
	}
	defer func() {
		e.fail(fmt.Errorf("%w: %w", ErrLost, err))
		<-e.turn
	}()
	_ = conn.SetDeadline(time.Now().Add(patience))
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var q *rdma
	var mine Hello
	if e.cfg.PD != nil {
		if q, err = newRDMA(e, conn); err != nil {
			return err
		}
		defer q.close()
		mine = q.hello()
	}
	l, err := meet(mine, q)
	if err == nil {
		_ = conn.SetDeadline(time.Time{})
		err = e.run(ctx, l)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return err
}

func (e *End) run(ctx context.Context, l link) error {
	e.mu.Lock()
	e.core.Begin()
	e.link = l
	e.push()
	e.mu.Unlock()
	err := l.run(ctx)
	e.mu.Lock()
	e.link, e.cut = nil, nil
	e.mu.Unlock()
	return err
}

// Fail ends the operations that wait for a connection, which could not even be tried.
func (e *End) Fail(why error) {
	select {
	case e.turn <- struct{}{}:
		e.fail(fmt.Errorf("%w: %w", ErrLost, why))
		<-e.turn
	case <-e.closed: // Close does it
	}
}

// fail ends all operations. Its caller has the turn, so that their Done are called in their order.
func (e *End) fail(why error) {
	e.mu.Lock()
	ops := e.core.End()
	e.mu.Unlock()
	finish(ops, why)
}

func finish(ops []*Op, err error) {
	for _, op := range ops {
		op.Done(err)
	}
}

// Close ends the end. When it returns, nothing comes to the regions any more, and all operations have
// failed with that error.
func (e *End) Close(why error) {
	e.mu.Lock()
	first := e.err == nil
	if first {
		e.err = why
		close(e.closed)
	}
	if e.cut != nil {
		e.cut(why)
	}
	e.mu.Unlock()
	if first {
		e.turn <- struct{}{} // and keeps it
		e.fail(why)
	}
}

// Closed is closed when Close was called.
func (e *End) Closed() <-chan struct{} { return e.closed }

// Err returns why it is closed; nil: it is not.
func (e *End) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Submit begins an operation. After an error, Done is not called.
func (e *End) Submit(op *Op) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	e.core.Submit(op)
	e.push()
	return nil
}

// Set sets a counter, which the peer learns of.
func (e *End) Set(i int, v uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	e.core.Set(i, v)
	e.push()
	return nil
}

// Took says that the application has taken a message.
func (e *End) Took() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.core.Took()
	e.push()
}

// Peer returns the peer's counters, and what is closed when they change.
func (e *End) Peer() (counters [Counters]uint64, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.core.Peer(), e.heard
}

// Connected says whether there is a connection.
func (e *End) Connected() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.link != nil
}

// Sync orders what the peer has written by a queue pair before what the caller does next.
func (e *End) Sync() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.link != nil {
		e.link.sync()
	}
}

// push sends what is to be sent. e.mu is held.
func (e *End) push() {
	for e.link != nil {
		var err error
		if b, ok := e.core.Tell(); ok {
			err = e.link.tell(b)
		} else if op := e.core.Next(); op != nil {
			err = e.link.post(op)
		} else {
			return
		}
		if err != nil {
			e.link = nil
			e.cut(err)
		}
	}
}

// progress is what a link has to report.
type progress struct {
	completed uint64
	told      bool
}

// advance takes what was sent.
func (e *End) advance(p progress) error {
	e.mu.Lock()
	if p.told {
		e.core.Told()
	}
	ops, err := e.core.Complete(p.completed)
	e.push()
	e.mu.Unlock()
	finish(ops, nil)
	return err
}

// hear takes the peer's board.
func (e *End) hear(b Board) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.core.Peer()
	if err := e.core.Heard(b); err != nil {
		return err
	}
	if e.core.Peer() != before {
		close(e.heard)
		e.heard = make(chan struct{})
	}
	e.push()
	return nil
}

// came takes a message.
func (e *End) came(m Message) error {
	e.mu.Lock()
	err := e.core.Came()
	e.mu.Unlock()
	if err == nil {
		e.cfg.Deliver(m)
	}
	return err
}
