package mcrdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A Group is the sender's end of a group. All methods may be called by any goroutine.
type Group struct {
	cfg     GroupConfig
	id      GroupID
	places  []*mcrdmav1.RegionSpec // where the packets' addresses have the regions
	events  *eventQueue
	begun   chan struct{} // closed when the first formation has begun
	ended   chan struct{} // closed when the group has ended
	drained chan struct{} // closed when closing and no operation is in flight
	news    chan struct{} // has a token if the runner's next job may be another one
	tally   tally
	poster

	ctx  context.Context         // the group's life; its cause is why it has ended
	stop context.CancelCauseFunc // ends it

	mu   sync.Mutex
	life life
	groupPath
	unicasts map[string]*Unicast // by address

	shutting sync.Once
	closeErr error // of Close, once over
}

// A groupPath is the present formation's.
type groupPath struct {
	path   outbound // nil between formations
	phases []Phase
	cut    context.CancelCauseFunc // ends it
}

// An outbound is how the operations of one formation travel.
type outbound interface {
	// post posts an operation, and does not wait. Calls come one after the other, and none
	// after an error.
	post(o *queued) error
	// run handles completions until the formation fails or ctx ends, and returns why. When
	// it returns, nothing uses the operations' memory, and the path is closed.
	run(ctx context.Context) error
	// nudge makes the receivers acknowledge once more, if that may complete something. Its calls
	// are sequential with those of post.
	nudge()
	// heard returns the time of the last acknowledgement, or of the oldest unacknowledged packet,
	// and how long the device has learned to wait for acknowledgements. moved is when something
	// last completed.
	heard(now, moved time.Time) (last time.Time, patience time.Duration)
}

func newGroup(c *Client, cfg GroupConfig) *Group {
	g := &Group{
		cfg: cfg, events: newEventQueue(), begun: make(chan struct{}), ended: make(chan struct{}), drained: make(chan struct{}),
		news: make(chan struct{}, 1), poster: poster{c: c, regions: cfg.Regions, room: make(chan struct{}, cfg.Depth)},
	}
	g.to, g.over, g.cut = g, g.ended, func(error) {}
	g.life.needViews, g.life.waits = cfg.OnView != nil, cfg.WaitForMinSize
	g.ctx, g.stop = context.WithCancelCause(c.ctx)
	return g
}

func (g *Group) groupID() GroupID { return g.id }

// Post begins an operation and returns a handle to wait for it; op.Done is not called. Like Submit
// it waits until fewer than Depth operations are in flight. The pieces belong to the group until
// Wait returns anything but an Error with Pending. Calling Wait is optional.
func (g *Group) Post(ctx context.Context, op Op) (*Pending, error) {
	return g.begin(ctx, op, op.Pieces)
}

// Write writes the pieces, one after another, into a region of every receiver, and returns when all
// have them. If ctx ends first, the operation goes on, and the bytes belong to the group until the
// Pending of the Error is done. The error wraps ErrInvalid, for example if at is outside of the
// region, ErrClosed, ErrFailed, ErrMinSize, or ctx's error.
func (g *Group) Write(ctx context.Context, at At, pieces ...Piece) error {
	return g.do(ctx, Op{Kind: OpWrite, At: at}, pieces)
}

// WriteImm is Write, and also consumes a posted receive of each receiver, which gets imm.
func (g *Group) WriteImm(ctx context.Context, at At, imm uint32, pieces ...Piece) error {
	return g.do(ctx, Op{Kind: OpWriteImm, At: at, Imm: imm}, pieces)
}

// Send sends the pieces, as one message, into a posted receive of every receiver, and returns as
// Write does.
func (g *Group) Send(ctx context.Context, pieces ...Piece) error {
	return g.do(ctx, Op{Kind: OpSend}, pieces)
}

// SendImm is Send with immediate data.
func (g *Group) SendImm(ctx context.Context, imm uint32, pieces ...Piece) error {
	return g.do(ctx, Op{Kind: OpSendImm, Imm: imm}, pieces)
}

// Submit begins an operation and returns; op.Done reports its end. If GroupConfig.Depth operations
// are in flight, it waits until one completes, or ctx ends. After an error, Done is not called. The
// error wraps ErrLimit if the operation alone has more packets than the group's switches can have
// unacknowledged. Operations take effect in the order of Submit. In the steady state it does not
// allocate.
func (g *Group) Submit(ctx context.Context, op *Op) error {
	if err := g.admit(ctx, op, OpSendImm); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	l := &g.life
	if err := l.takes(op); err != nil {
		g.letGo(op)
		return err
	}
	if l.queue.ops.len() == 0 {
		g.tally.move()
	}
	l.queue.push(op)
	op.Number = l.stats.Operations
	l.stats.Operations++
	g.post()
	return nil
}

// Events returns the channel of the group's events. If the application does not read them, the
// oldest are lost. The channel is closed after the last event, EventClosed or EventFailed.
func (g *Group) Events() <-chan Event { return g.events.c }

// Err returns the reason why the group has ended, or nil if it has not.
func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.life.state == closed {
		return g.life.err
	}
	return nil
}

// Departures returns the removed receivers, the latest removal last. A receiver is listed once,
// with its latest removal, even if it is a member again (see Info.Members); its Peer.From then says
// from where on it has everything again. A receiver is listed before any operation completes
// without it, and the list stays available after the group's end.
func (g *Group) Departures() []Departure {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []Departure
	for _, d := range g.life.gone {
		list = append(list, d.Departure)
	}
	return list
}

// View returns the view with which operations complete at present. While the group waits for
// members (GroupConfig.WaitForMinSize), it is the last one with which operations completed;
// Info.Members are the remaining members.
func (g *Group) View() View {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.life.view.clone()
}

// Info returns the current state of the group.
func (g *Group) Info() Info {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := infoOf(g.life.info)
	i.ID, i.Service, i.Mode, i.MinSize = g.id, g.cfg.Service, g.cfg.Mode, g.cfg.MinSize
	i.Members, i.Tree, i.View = g.life.present(), slices.Clone(g.life.tree), g.life.view.Number
	i.Phases = append(i.Phases, g.phases...)
	i.Stats = g.life.stats
	i.Stats.Violations = g.tally.violations.Load()
	i.Stats.Posts, i.Stats.Completions, i.Stats.Strangers = g.tally.posts.Load(), g.tally.completions.Load(), g.tally.strangers.Load()
	return i
}

// Close waits for the operations in flight, and ends the group for all members. If ctx ends before
// they are complete, they fail with ErrClosed, the group is still closed, and Close returns ctx's
// error. It returns after the last Op.Done has returned, and nil if every member has every submitted
// operation. Close may be called again, and returns the same.
func (g *Group) Close(ctx context.Context) error {
	g.step((*life).drain)
	var err error
	select {
	case <-g.drained:
	default:
		select {
		case <-g.drained:
		case <-g.ended:
		case <-ctx.Done():
			err = fmt.Errorf("close the group, with operations under way: %w", ctx.Err())
		}
	}
	g.shutting.Do(func() {
		g.closeErr = err
		g.end(errClosing)
	})
	<-g.ended
	if err := g.Err(); !errors.Is(err, ErrClosed) {
		return err
	}
	return g.closeErr
}

// Add adds receivers to the group, for example in place of removed ones; they are addresses or
// names of hosts. If one of their daemons answers, the group is re-formed for that, perhaps on
// another path, even if no receiver can be added, and operations wait meanwhile: up to about a second
// if a new receiver's application or daemon does not answer. Add returns the cut: the first operation
// that the new receivers have. They have all operations from there on; the application must copy to
// them what earlier ones wrote. View has the cut, too, as Peer.From.
//
// The error wraps ErrInvalid, ErrClosed, the reason why the group has failed, or ctx's error. Or it
// says why receivers could not be added: errors.As finds the Error of the first one, with its
// Reason, Host and Text. Most are ErrUnreachable; a receiver that refuses causes ErrDenied, for
// example, and one that switches cannot reach in mode require, ErrNoSwitch. The group then goes on
// without the receivers that were not added, and the cut is that of the others. If ctx ends first, they
// may still be added.
func (g *Group) Add(ctx context.Context, receivers ...string) (cut uint64, err error) {
	if len(receivers) == 0 || slices.Contains(receivers, "") {
		return 0, fmt.Errorf("%w receivers to be added: %q", ErrInvalid, receivers)
	}
	if err := checkUTF8("receiver", receivers...); err != nil {
		return 0, err
	}
	if err := g.reach(ctx, receivers); err != nil && g.ctx.Err() == nil {
		return 0, cmp.Or(ctx.Err(), err)
	}
	w := &addition{slices.Clone(receivers), make(chan answer, 1)}
	g.step(func(l *life) { err = l.add(w) })
	if err != nil {
		return 0, err
	}
	select {
	case a := <-w.done:
		return a.cut, a.err
	case <-g.ended:
		return 0, g.Err()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// reach returns why no host of these answers; nil: one does.
func (g *Group) reach(ctx context.Context, receivers []string) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	resp, err := call(ctx, g.c, g.c.rpc.Reach, &mcrdmav1.ReachRequest{Token: g.c.token(), Receivers: receivers})
	if errors.Is(err, ErrVersion) { // an earlier release has no such call
		return nil
	}
	if err != nil || len(resp.GetAbsent()) < len(receivers) {
		return err
	}
	for _, r := range receivers {
		err = errors.Join(err, absent(resp.GetAbsent(), r))
	}
	return err
}

// An addition asks for further receivers.
type addition struct {
	receivers []string
	done      chan answer // 1
}
