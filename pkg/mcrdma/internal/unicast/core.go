package unicast

import (
	"errors"
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

const (
	// Counters is how many counters an end has.
	Counters = 8
	// Slots is how many messages an end keeps that its application has not taken.
	Slots = 16
	// MaxMessage is how many bytes a message may have.
	MaxMessage = 8 << 10
)

// ErrPeer says that the peer does what the protocol does not allow.
var ErrPeer = errors.New("the peer's library violates the protocol")

// A Board is what an end tells the other of itself. Only the latest counts.
type Board struct {
	// Limit is how many messages the other may send in this connection, those that came counted.
	Limit    int64
	Counters [Counters]uint64
}

// An Op is an operation to the other end. It belongs to the end until Done is called.
type Op struct {
	Kind     qp.Opcode
	Deferred bool   // it may complete late: see qp.FlagDeferred
	Region   int    // of WRITE and READ
	Offset   uint64 // in it
	Imm      uint32
	Bufs     []Buf // what is sent; a READ fills them
	Done     func(error)
}

// A Buf is bytes of memory that is registered, where there is a device.
type Buf struct {
	Bytes []byte
	SGE   qp.SGE
}

// message says whether it takes a slot of the other end.
func (o *Op) message() bool { return o.Kind != qp.OpWrite && o.Kind != qp.OpRead }

// size is how many bytes it moves.
func (o *Op) size() (n uint64) {
	for _, b := range o.Bufs {
		n += uint64(len(b.Bytes))
	}
	return n
}

// A Core is the state of an end. It is pure: events are its methods, and Next and Tell are what is to
// be sent. Operations are posted and complete in their order; a message waits for a slot, and
// what was submitted after it waits, too. Boards do not wait.
type Core struct {
	Window int // operations that may be posted at a time

	ops    []*Op // that are not complete
	posted int   // of ops, the oldest
	flying int   // messages of these
	sent   int64 // messages posted in this connection
	peer   Board

	mine, told  Board
	telling     bool
	came, taken int64 // messages in this connection; before it begins, taken is at most 0
}

// Begin begins a connection.
func (c *Core) Begin() {
	c.taken -= c.came // what came before and was not taken still has its slots
	c.came, c.sent, c.peer.Limit = 0, 0, 0
	c.mine.Limit, c.told, c.telling = c.taken+Slots, Board{}, false
}

// End ends the connection, and returns the operations that are not complete.
func (c *Core) End() (ops []*Op) {
	ops, c.ops = c.ops, nil
	c.posted, c.flying, c.telling = 0, 0, false
	return ops
}

// Submit adds an operation.
func (c *Core) Submit(op *Op) { c.ops = append(c.ops, op) }

// Next returns the next operation to post; nil if there is none.
func (c *Core) Next() *Op {
	if c.posted == len(c.ops) || c.posted == c.Window {
		return nil
	}
	op := c.ops[c.posted]
	if op.message() {
		if c.sent == c.peer.Limit || c.flying == Slots {
			return nil
		}
		c.sent++
		c.flying++
	}
	c.posted++
	return op
}

// Complete takes the n oldest operations, which are complete.
func (c *Core) Complete(n uint64) (ops []*Op, err error) {
	if n > uint64(c.posted) {
		return nil, fmt.Errorf("%w: %d operations are complete, and %d were posted", ErrPeer, n, c.posted)
	}
	ops, c.ops = c.ops[:n:n], c.ops[n:]
	c.posted -= int(n)
	for _, op := range ops {
		if op.message() {
			c.flying--
		}
	}
	return ops, nil
}

// Set sets a counter.
func (c *Core) Set(i int, v uint64) { c.mine.Counters[i] = v }

// Tell returns the board that is to be sent, if there is one. The next one waits for Told.
func (c *Core) Tell() (Board, bool) {
	if c.telling || c.mine == c.told {
		return Board{}, false
	}
	c.mine.Limit = c.taken + Slots // as a board goes anyway
	c.telling, c.told = true, c.mine
	return c.mine, true
}

// Told says that the board is sent, and its memory free.
func (c *Core) Told() { c.telling = false }

// Heard takes the peer's board.
func (c *Core) Heard(b Board) error {
	if b.Limit < c.peer.Limit || b.Limit > c.sent+Slots {
		return fmt.Errorf("%w: it takes %d messages, after %d, and %d were sent", ErrPeer, b.Limit, c.peer.Limit, c.sent)
	}
	c.peer = b
	return nil
}

// Peer returns the peer's counters.
func (c *Core) Peer() [Counters]uint64 { return c.peer.Counters }

// Came counts a message that has come.
func (c *Core) Came() error {
	if c.came == c.mine.Limit {
		return fmt.Errorf("%w: a message without a slot for it, after %d", ErrPeer, c.came)
	}
	c.came++
	return nil
}

// Took says that the application has taken a message. The peer hears of half of the slots at a time.
func (c *Core) Took() {
	c.taken++
	if limit := c.taken + Slots; limit-c.mine.Limit >= Slots/2 {
		c.mine.Limit = limit
	}
}
