package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/pkg/collective/core"
	"github.com/mcrdma/mcrdma/pkg/collective/model"
)

// A Comm is a communicator: one rank of a set of ranks that do operations together. All methods and
// operations may be called by any goroutine. Operations of a lane take turns; the caller must
// ensure that their order is the same at all ranks.
type Comm struct {
	e     *engine
	group core.Group
	rank  int
	lane  int
	costs model.Params
}

// Rank returns this rank's number, from 0. Shrink may change it.
func (c *Comm) Rank() int { return c.rank }

// Size returns the number of ranks.
func (c *Comm) Size() int { return len(c.group.IDs) }

// Hosts returns the ranks' hosts, by rank.
func (c *Comm) Hosts() (list []string) {
	for _, id := range c.group.IDs {
		list = append(list, c.e.cfg.Hosts[id])
	}
	return list
}

// Lane returns the Comm of lane i, whose operations run concurrently with those of other lanes.
// Lanes are numbered from 0, which is that of Join's Comm, to Config.Lanes-1; it panics if there is
// no such lane. Operations match within a lane. Lane does not communicate.
func (c *Comm) Lane(i int) *Comm {
	if i < 0 || i >= c.e.cfg.Lanes {
		panic(fmt.Sprintf("collective: lane %d, and there are 0 to %d", i, c.e.cfg.Lanes-1))
	}
	if i == c.lane {
		return c
	}
	other := *c
	other.lane = i
	return &other
}

// Explain returns a text for people, with the model's prediction for trees of each degree, and the
// degree in use, for a barrier and for sizes up to Config.Small.
func (c *Comm) Explain() string { return c.e.cfg.explain(c.costs, c.Size()) }

func (c *Config) explain(costs model.Params, ranks int) string {
	sizes := []int{0}
	for _, size := range []int{4, c.Small / 4, c.Small} {
		if size > sizes[len(sizes)-1] && size <= c.Small {
			sizes = append(sizes, size)
		}
	}
	return costs.Explain(ranks, c.Degree, sizes...)
}

// Err returns the reason why operations of this Comm fail, or nil if they do not.
func (c *Comm) Err() error {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.err()
}

// err is Err when the engine is locked.
func (c *Comm) err() error {
	if c.e.closed != nil {
		return c.e.closed
	}
	f := c.e.node.Failed(c.group)
	if f == nil {
		return nil
	}
	e := &Error{kind: ErrLost}
	removed := false
	for r, id := range c.group.IDs {
		if slices.Contains(f.Lost, id) && c.e.peers[id] != nil {
			e.Lost = append(e.Lost, Lost{Rank: r, Host: c.e.cfg.Hosts[id], Why: c.e.peers[id].why})
			removed = removed || c.e.peers[id].removed
		}
	}
	switch {
	case f.Excluded, removed && len(e.Lost) == c.Size()-1: // all are lost because it was this one that did not answer
		e.kind = ErrExcluded
		return e
	case len(e.Lost) == 0:
		e.kind = ErrGivenUp
	}
	if f.GivenUp {
		e.text = c.blame(f.Blame)
	}
	return e
}

// blame says who has given up, and why. This rank knows that best of itself.
func (c *Comm) blame(b core.Blame) string {
	if c.e.givenUp != "" {
		return c.e.givenUp
	}
	who := c.name(b.ID())
	switch b.Cause() {
	case core.Closing:
		return who + " closes, and others do something else"
	case core.Differs:
		return "by " + who + ", whose call differs from another rank's"
	case core.OpStopped:
		return "by " + who + ", whose Op has not returned"
	default:
		return "by " + who + ", whose context has ended"
	}
}

// giveUp ends all operations. The engine is locked. What this rank's own error is, its caller knows.
func (c *Comm) giveUp(b core.Blame, why string) {
	if c.err() != nil {
		return // that ends this one, and others may go on with another Comm
	}
	c.e.givenUp = fmt.Sprintf("by this rank: %s", why)
	if err := c.e.node.GiveUp(b); err != nil {
		c.e.closed = &Error{kind: ErrClosed, text: err.Error()}
		c.e.wake()
	}
	c.e.perform()
}

// run does an operation.
func (c *Comm) run(ctx context.Context, t core.Task, in, out []byte, combine func(dst, src []byte)) error {
	e := c.e
	l := &e.lanes[c.lane]
	var op *core.Op
	t.Rank, t.Size, t.Block, t.Small = c.rank, c.Size(), e.cfg.Block, e.cfg.Small
	if t.Degree = e.cfg.Degree; t.Degree == 0 {
		t.Degree = c.costs.Degree(t.Size, t.Count*t.Elem)
	}
	select {
	case l.busy <- struct{}{}:
		defer func() { <-l.busy }()
		op = core.NewOp(t, in, out, combine)
	case <-ctx.Done(): // before its turn
	}
	e.mu.Lock()
	if err := c.goesOn(ctx, nil); err != nil {
		e.mu.Unlock()
		return fmt.Errorf("it was not begun: %w", err)
	}
	call := e.node.Begin(c.group, c.lane, op)
	e.perform()
	panicked := true
	defer func() { // e.mu is held, unless it panics
		if panicked {
			e.mu.Lock()
			c.giveUp(core.Blames(e.cfg.Rank, core.OpStopped), "an Op has not returned: it has panicked, or ended its goroutine")
		}
		e.node.End(call)
		e.perform()
		e.mu.Unlock()
	}()
	for {
		err := c.step(ctx, call, op, t.Count*t.Elem)
		if err != nil || e.node.Finished(call) {
			panicked = false
			return err
		}
	}
}

// awaited says whose messages an operation waits for; nil: it was not begun.
func (c *Comm) awaited(op *core.Op) (text string) {
	if op == nil {
		return ""
	}
	for i, r := range op.Awaited() {
		text += []string{"; it has waited for ", ", "}[min(i, 1)] + c.name(c.group.IDs[r])
	}
	return text
}

// name names a rank by its id.
func (c *Comm) name(id int) string {
	return fmt.Sprintf("rank %d (%s)", slices.Index(c.group.IDs, id), c.e.cfg.Hosts[id])
}

// goesOn returns why no operation goes on: those of this Comm have ended, or the context has, and then they are given up. The engine is locked.
func (c *Comm) goesOn(ctx context.Context, op *core.Op) error {
	err := c.err()
	if err == nil && ctx.Err() != nil {
		why := context.Cause(ctx).Error() + c.awaited(op)
		c.giveUp(core.Blames(c.e.cfg.Rank, core.ContextEnded), why)
		err = &Error{kind: ErrGivenUp, text: why, cause: ctx.Err()}
	}
	return err
}

// step does what there is to do, or waits for something. The engine is locked, and unlocked meanwhile.
func (c *Comm) step(ctx context.Context, call *core.Call, op *core.Op, size int) (err error) {
	e := c.e
	if e.node.Finished(call) {
		return nil
	}
	if err := c.err(); err != nil {
		return err
	}
	list, err := e.node.Take(call)
	if err == nil && len(list) == 0 {
		e.mu.Unlock()
		e.poll(size)
		select {
		case <-e.lanes[c.lane].wake:
		case <-ctx.Done():
		}
		e.mu.Lock()
		return c.goesOn(ctx, op)
	}
	if err == nil {
		e.mu.Unlock()
		for _, a := range list {
			if err = op.Arrive(a.From, a.Path, a.Data); err != nil {
				break
			}
		}
		e.mu.Lock()
	}
	if err != nil {
		b := core.Blames(e.cfg.Rank, core.Differs)
		if m, ok := errors.AsType[*core.Mismatch](err); ok && m.Theirs == core.Close {
			b = core.Blames(c.group.IDs[m.Rank], core.Closing)
		} else if ok && m.Ours == core.Close {
			b = core.Blames(e.cfg.Rank, core.Closing)
		}
		c.giveUp(b, err.Error())
		return &Error{kind: ErrMismatch, text: err.Error()}
	}
	e.node.Progress(call)
	e.perform()
	return nil
}

// Barrier returns when all ranks have called it.
func (c *Comm) Barrier(ctx context.Context) error { return c.meet(ctx, core.Barrier) }

// meet is an operation without data.
func (c *Comm) meet(ctx context.Context, k core.Kind) error {
	if err := c.run(ctx, core.Task{Kind: k, Elem: 1}, nil, nil, func(_, _ []byte) {}); err != nil {
		return fmt.Errorf("%v: %w", k, err)
	}
	return nil
}

// Shrink returns a Comm of the remaining ranks, in their order, once all of them agree on the lost
// ones. All remaining ranks must call it. If more ranks are lost meanwhile, some may get a Comm
// that includes them, whose operations then fail, so that they call Shrink again. It returns c if c
// has not failed. The error wraps ErrExcluded, ErrClosed, or is ctx's.
func (c *Comm) Shrink(ctx context.Context) (*Comm, error) {
	e := c.e
	for {
		e.mu.Lock()
		err := c.err()
		if err == nil || errors.Is(err, ErrExcluded) || errors.Is(err, ErrClosed) {
			e.mu.Unlock()
			return c, err
		}
		g, ok := e.node.Shrink()
		if ok {
			e.givenUp = ""
		}
		e.perform()
		changed := e.changed
		e.mu.Unlock()
		if ok {
			next := *c
			next.group, next.rank = g, slices.Index(g.IDs, e.cfg.Rank)
			return &next, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("shrink: the ranks that are left do not agree yet: %w", ctx.Err())
		}
	}
}

// Close waits until all ranks have called it, and closes the connections of all lanes and of all
// Comms from the same Join. If the Comm has failed, it does not wait for the others. It takes its
// turn on the Comm's lane, after an operation in flight there. Operations on other lanes end with
// ErrClosed when all ranks have called Close, which returns after them. The error wraps ErrMismatch
// or ErrGivenUp if not all ranks have called it, for example because one calls another operation;
// or it is ctx's, or says what could not be closed. The connections are closed in any case.
func (c *Comm) Close(ctx context.Context) error {
	e := c.e
	e.mu.Lock()
	first := !e.closing
	e.closing = true
	failed := c.err() != nil
	e.mu.Unlock()
	if !first {
		return nil
	}
	err := c.meet(ctx, core.Close)
	if failed || !errors.Is(err, ErrMismatch) && !errors.Is(err, ErrGivenUp) {
		err = nil // ranks that are lost may have closed already
	}
	return errors.Join(err, e.close(ctx))
}
