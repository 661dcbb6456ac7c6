package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/hostclock"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A Group is the sender's end of a group. All methods may be called by any goroutine.
type Group struct {
	c         *Client
	cfg       GroupConfig
	id        GroupID
	regions   []*mcrdmav1.RegionSpec
	minSize   int
	events    *eventQueue
	room      chan struct{} // a token for each further operation
	over      chan struct{} // closed when the group has ended
	moved     atomic.Int64  // when something completed, or began when nothing was under way; Unix ns
	posts     atomic.Uint64
	comps     atomic.Uint64
	strangers atomic.Uint64

	ctx  context.Context         // the group's life; its cause is why it has ended
	stop context.CancelCauseFunc // ends it

	mu      sync.Mutex
	queue   opQueue
	path    outbound // nil between formations
	info    *mcrdmav1.FormationInfo
	steps   []Step
	cut     context.CancelCauseFunc // ends the present formation
	early   []*mcrdmav1.GroupChanged
	removed map[string]bool // addresses of removed receivers, of which the application has been told
	missing []missing
	lacks   lacks
	adding  []*addition // of Add, for the next formation
	closing bool
	drained chan struct{} // closed when closing and nothing is under way
	err     error
	stats   Stats
	stalled time.Time // when a stall was last reported

	shutting sync.Once
	closeErr error // of Close, once over

	// The runner's:
	next      *formation // connected, not begun
	batch     []*Op
	fruitless int // formations in a row in which nothing was completed
}

// An outbound is how the operations of one formation travel.
type outbound interface {
	// post posts what is queued. g.mu is held.
	post()
	// run handles completions until the formation fails or ctx ends, and returns why. When
	// it returns, nothing uses the operations' memory.
	run(ctx context.Context) error
	// abandon ends a path that was never run.
	abandon()
}

// A formation is a connected formation.
type formation struct {
	info  *mcrdmav1.FormationInfo
	path  outbound
	steps []Step
	// catchUp: the formation only sends what some receivers have and others lack.
	catchUp bool
}

// A waiter is an operation that a caller waits for.
type waiter struct {
	op     Op
	pieces [MaxPieces]Piece
	done   chan error
}

var waiters = sync.Pool{New: func() any {
	w := &waiter{done: make(chan error, 1)}
	w.op.Done = func(op *Op) { w.done <- op.Err }
	return w
}}

// do submits an operation and waits for its end.
func (g *Group) do(ctx context.Context, kind Kind, at At, imm uint32, pieces []Piece) error {
	if len(pieces) > MaxPieces {
		return errPieces(len(pieces), MaxPieces)
	}
	w := waiters.Get().(*waiter)
	w.op.Kind, w.op.At, w.op.Imm, w.op.Err = kind, at, imm, nil
	w.op.Pieces = w.pieces[:copy(w.pieces[:], pieces)]
	if err := g.Submit(ctx, &w.op); err != nil {
		return err
	}
	select {
	case err := <-w.done:
		clear(w.op.Pieces)
		waiters.Put(w)
		return err
	case <-ctx.Done():
		return fmt.Errorf("%v: %w; it goes on", kind, ctx.Err())
	}
}

// Write puts the pieces, one behind the other, into a region of every receiver, and
// returns when all have them. If ctx ends before, the operation goes on, and the bytes
// belong to the group until a later operation is complete, or the group is closed.
// The error wraps ErrRange if it is outside of the region, ErrDepth, ErrClosed,
// ErrFailed, ErrMinSize, or is ctx's.
func (g *Group) Write(ctx context.Context, at At, pieces ...Piece) error {
	return g.do(ctx, OpWrite, at, 0, pieces)
}

// WriteImm is Write, and also consumes a posted receive of each receiver, which gets imm.
func (g *Group) WriteImm(ctx context.Context, at At, imm uint32, pieces ...Piece) error {
	return g.do(ctx, OpWriteImm, at, imm, pieces)
}

// Send sends the pieces, as one message, to a posted receive of every receiver, and
// returns as Write does.
func (g *Group) Send(ctx context.Context, pieces ...Piece) error {
	return g.do(ctx, OpSend, At{}, 0, pieces)
}

// SendImm is Send with immediate data.
func (g *Group) SendImm(ctx context.Context, imm uint32, pieces ...Piece) error {
	return g.do(ctx, OpSendImm, At{}, imm, pieces)
}

// Submit begins an operation and returns; op.Done reports its end. If GroupConfig.Depth
// operations are under way it waits for room, or until ctx ends. After an error, Done is
// not called. Operations take effect in the order of Submit. In the steady state it does
// not allocate.
func (g *Group) Submit(ctx context.Context, op *Op) error {
	if err := g.check(op); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := holdAll(g.c, op.Pieces); err != nil {
		return err
	}
	select {
	case <-g.room:
	default:
		select {
		case <-g.room:
		case <-g.over:
			releaseAll(op.Pieces)
			return g.Err()
		case <-ctx.Done():
			releaseAll(op.Pieces)
			return ctx.Err()
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil || g.closing {
		releaseAll(op.Pieces)
		g.room <- struct{}{}
		if g.err != nil {
			return g.err
		}
		return fmt.Errorf("%w: the group is being closed", ErrClosed)
	}
	if g.queue.ops.len() == 0 {
		g.moved.Store(time.Now().UnixNano())
	}
	g.queue.push(op)
	g.stats.Operations++
	if g.path != nil {
		g.path.post()
	}
	return nil
}

func errPieces(n, limit int) error {
	return fmt.Errorf("%w pieces in one operation: %d, at most %d", ErrDepth, n, limit)
}

// check says what is wrong with an operation, and sets its size.
func (g *Group) check(op *Op) error {
	if op.Kind > OpSendImm || op.Done == nil {
		return fmt.Errorf("%w operation: kind %d; it needs a Done", ErrInvalid, op.Kind)
	}
	if len(op.Pieces) > g.c.maxPieces {
		return errPieces(len(op.Pieces), g.c.maxPieces)
	}
	op.size = 0
	for i := range op.Pieces {
		op.size += uint64(op.Pieces[i].n)
	}
	if op.size > qp.MaxMessage {
		return fmt.Errorf("%w: a message of %d bytes; at most %d", ErrRange, op.size, qp.MaxMessage)
	}
	if op.Kind.send() {
		return nil
	}
	if op.At.Region < 0 || op.At.Region >= len(g.regions) {
		return fmt.Errorf("%w: region %d; the group has %d", ErrRange, op.At.Region, len(g.regions))
	}
	return inRange(op.At.Offset, op.size, g.regions[op.At.Region].GetLength())
}

// finish takes the n oldest operations out of the queue, which are complete. It is
// the runner's.
func (g *Group) finish(n int) {
	if n == 0 {
		return
	}
	g.fruitless = 0
	g.mu.Lock()
	g.take(n)
	g.mu.Unlock()
	g.hand(nil)
	g.checkDrained()
}

// take puts the n oldest operations, which are complete, into the batch. g.mu is held.
func (g *Group) take(n int) {
	g.batch = g.batch[:0]
	g.lacks.marks.put(hostclock.Now(), g.stats.Completed)
	for range n {
		op := g.queue.pop()
		g.batch = append(g.batch, op)
		g.stats.Completed++
		g.stats.Bytes += op.size
	}
	if g.queue.caughtUp() {
		g.fail(errCaughtUp)
	}
	g.moved.Store(time.Now().UnixNano())
}

// hand gives the batch back to the application.
func (g *Group) hand(err error) {
	for _, op := range g.batch {
		releaseAll(op.Pieces)
		g.room <- struct{}{}
	}
	for i, op := range g.batch {
		g.batch[i] = nil
		op.Err = err
		op.Done(op)
	}
}

func (g *Group) checkDrained() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing && g.queue.ops.len() == 0 {
		select {
		case <-g.drained:
		default:
			close(g.drained)
		}
	}
}

// Events returns what happens to the group. If the application does not read them, the
// oldest are lost. The channel is closed after the last event, Closed or Failed.
func (g *Group) Events() <-chan Event { return g.events.c }

// Err returns why the group has ended, and nil before that.
func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Info returns how the group is at present.
func (g *Group) Info() Info {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := infoOf(g.info)
	i.ID, i.Service, i.Mode, i.MinSize = g.id, g.cfg.Service, g.cfg.Mode, g.minSize
	i.Steps = append(i.Steps, g.steps...)
	i.Stats = g.stats
	i.Stats.Posts, i.Stats.Completions, i.Stats.Strangers = g.posts.Load(), g.comps.Load(), g.strangers.Load()
	return i
}

// infoOf translates what the daemon says.
func infoOf(f *mcrdmav1.FormationInfo) Info {
	i := Info{
		ID: groupID(f.GetGroup()), Path: Path(f.GetPath()), Why: f.GetWhy(), Formation: f.GetFormation(), MCID: f.GetMcId(),
		PSN: f.GetConnection().GetPsn(), MTU: int(f.GetConnection().GetMtu()), Tree: f.GetTree(),
	}
	if r := f.GetRelay(); r != nil && i.Path == PathRelay {
		i.Algorithm, i.Transport, i.Block = r.GetAlgorithm(), r.GetTransport(), int(r.GetBlock())
	}
	for _, m := range f.GetMembers() {
		i.Members = append(i.Members, Peer{Address: m.GetAddress(), Host: m.GetHost(), QPN: m.GetQpn()})
	}
	for _, s := range f.GetSteps() {
		i.Steps = append(i.Steps, Step{Name: s.GetStep(), Took: s.GetTook().AsDuration()})
	}
	return i
}

// Close waits for the operations under way, and ends the group for all members. If ctx ends
// before they are complete, they fail with ErrClosed, the group is closed all the same, and
// Close returns ctx's error. It returns nil if every member has everything that was
// submitted. Close may be called again, and returns the same.
func (g *Group) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closing = true
	g.mu.Unlock()
	g.checkDrained()
	var err error
	select {
	case <-g.drained:
	default:
		select {
		case <-g.drained:
		case <-g.over:
		case <-ctx.Done():
			err = fmt.Errorf("close the group, with operations under way: %w", ctx.Err())
		}
	}
	g.shutting.Do(func() {
		g.closeErr = err
		g.stop(errClosing)
	})
	<-g.over
	if err := g.Err(); !errors.Is(err, ErrClosed) {
		return err
	}
	return g.closeErr
}

// errClosing is why a group has ended that was closed.
var errClosing = fmt.Errorf("%w: the group was closed", ErrClosed)
