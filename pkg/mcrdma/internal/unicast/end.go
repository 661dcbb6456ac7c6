package unicast

import (
	"context"
	"errors"
	"fmt"
	"sync"

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

// change changes the core, and sends what is to be sent. It fails if the end is closed.
func (e *End) change(f func(*Core)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	f(&e.core)
	e.push()
	return nil
}

// Submit begins an operation. After an error, Done is not called.
func (e *End) Submit(op *Op) error { return e.change(func(c *Core) { c.Submit(op) }) }

// Set sets a counter, which the peer learns of.
func (e *End) Set(i int, v uint64) error { return e.change(func(c *Core) { c.Set(i, v) }) }

// Took says that the application has taken a message.
func (e *End) Took() { _ = e.change((*Core).Took) }

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
