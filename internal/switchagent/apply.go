package switchagent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// undoTime bounds the rollback of a failed change. The next Sync repairs the rest at other
// switches.
const undoTime = 3 * time.Second

// A change takes a step from its current state to a plan.
type change struct {
	strict bool // all or nothing; otherwise best effort
	spec   groups.Spec
	// unreached: no packets arrive before the change is done. The sender begins when the group is
	// installed, and another switch turns packets here when its Hold has returned.
	unreached bool
	// merging is the change's edit at the merge point, and unmerging reverts it; nil: none.
	merging, unmerging edit
	// record stores what the step is to be; nil: it is stored already.
	record func(context.Context) error
}

// A branchError has the receivers that another switch refused.
type branchError struct {
	receivers []bifurcation.Receiver
	err       error
}

func (e *branchError) Error() string { return e.err.Error() }
func (e *branchError) Unwrap() error { return e.err }

// apply makes a change to a step whose turn the caller has. If another switch cannot tell a branch
// from another one, or fails and the change is not strict, that branch's receivers get separate
// copies from here. For a branch of a single receiver that is always possible: another switch would
// rewrite its copy only to keep flows together.
func (a *Agent) apply(ctx context.Context, s *groups.Step, c change) error {
	var early []netip.Addr
	unreached := false // a switch did not answer, and is bypassed
	for {
		p, err := a.plan(s.Key, c.spec, early, !c.strict)
		if err != nil {
			return err
		}
		if c.record == nil && c.merging == nil && a.table.State(s).Same(p.State) {
			a.uni.unuse(p.Installation.Hops())
		} else {
			err = a.transit(ctx, s, p, c)
		}
		if errors.Is(err, errOutdated) {
			continue
		}
		if err == nil && unreached {
			a.peers.detours.Store(true)
		}
		var b *branchError
		if !errors.As(err, &b) || len(early) >= len(c.spec.Receivers) ||
			c.strict && len(b.receivers) > 1 && !errors.Is(err, bifurcation.ErrAmbiguous) || ctx.Err() != nil {
			return err
		}
		unreached = unreached || !errors.Is(err, bifurcation.ErrAmbiguous)
		for _, r := range b.receivers {
			if !slices.Contains(early, r.Addr) {
				early = append(early, r.Addr)
			}
		}
		a.log.Info("a branch is split early", "group", s.Key, "receivers", len(b.receivers), "error", b.err)
	}
}

// A transition is a step on its way to a plan.
type transition struct {
	*planner.Transition
	s    *groups.Step
	p    plan
	c    change
	was  groups.State
	next groups.Installation
}

// drainTime is how long packets may be in flight to other switches: the time in which a gigabit
// link drains a large buffer.
const drainTime = 100 * time.Millisecond

// transit takes a step to a plan, in the order of package planner. If anything fails before packets
// turn, nothing has changed.
func (a *Agent) transit(ctx context.Context, s *groups.Step, p plan, c change) (err error) {
	t := transition{s: s, p: p, c: c, was: a.table.State(s)}
	if t.next, err = a.number(s, t.was.Installation, p.Installation.Rules); err != nil {
		return err
	}
	was, fresh := t.was, t.fresh()
	if err := a.uni.writeHops(ctx); err != nil {
		if fresh {
			a.forget(t.next)
		}
		return err
	}
	t.Transition = planner.Begin(planner.Change{Was: was.Branches, Next: p.Branches, Receivers: p.Spec.Receivers,
		Again: was.Behind || was.Spec.Generation != p.Spec.Generation, Copies: t.next.Installed(), Fresh: fresh,
		Unreached: c.unreached, Merging: c.merging != nil, Record: c.record != nil})
	type outcome struct {
		id  int
		err error
	}
	done := make(chan outcome)
	turned := false
	for {
		at := t.State()
		if !turned && t.Err() == nil && at >= planner.Draining {
			turned = true
			p.Installation = t.next
			a.table.Change(s, func(now *groups.State) { p.Record = now.Record; *now = p.State })
			if fresh {
				a.forget(was.Installation)
			}
		}
		if at == planner.Ended {
			break
		}
		for _, x := range t.Take() {
			go func(ctx context.Context) { done <- outcome{x.ID, a.perform(ctx, t, x)} }(ctx) // undoing changes it
		}
		o := <-done
		if o.err != nil && at >= planner.Trimming {
			a.log.Warn("another switch or the state keeps what is not needed, until the next sync", "group", s.Key, "error", o.err)
		}
		if t.Done(o.id, o.err); t.State() == planner.Undoing && at != planner.Undoing {
			undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			ctx = undoing
			a.table.Change(s, func(now *groups.State) { now.Coming = nil }) // before the branches are released, because ahead would take them for held
		}
	}
	a.table.Change(s, func(now *groups.State) { now.Coming, now.Behind = nil, now.Behind || t.Behind() })
	return t.Err()
}

// perform carries an action out.
func (a *Agent) perform(ctx context.Context, t transition, x planner.Action) error {
	was, next, s := t.was.Installation.Entities, t.next.Entities, t.s
	switch x.Kind {
	case planner.Early:
		return a.driver.write(ctx, puts(next[:len(next)-1], nil)) // the match is the last
	case planner.Turn:
		return a.driver.write(ctx, both(t.turn(next, was), t.c.merging))
	case planner.TurnBack:
		a.writeLater(ctx, both(t.turn(was, next), t.c.unmerging), func() {
			if t.fresh() {
				a.forget(t.next)
			}
		}, s.Key)
	case planner.Record:
		return t.c.record(ctx)
	case planner.RecordBack:
		return a.table.Persist(ctx, s, t.was.Record)
	case planner.Hold:
		sp := t.p.Spec
		if x.Back {
			sp = t.was.Spec
		}
		if err := a.peers.hold(ctx, s, sp, x.Branch, x.Receivers); err != nil {
			return &branchError{x.Receivers, err}
		}
	case planner.Drain:
		select {
		case <-time.After(drainTime):
		case <-ctx.Done():
		}
	case planner.Release:
		return a.peers.release(ctx, s, x.Branch)
	case planner.Route:
		a.table.Change(s, func(now *groups.State) { now.Coming = t.During() })
		return a.sameWays(ctx, t.p.ways)
	}
	return nil
}

// fresh reports whether the switch gets other entries.
func (t transition) fresh() bool { return t.next.Group != t.was.Installation.Group }

// turn turns packets from the old entries to the new ones. New entries are inserted first, so one
// edit can make the whole change on this switch.
func (t transition) turn(to, from []switchspec.Entity) edit {
	if !t.fresh() {
		return puts(nil, nil)
	}
	return puts(to, except(keysOf(from), keysOf(to)))
}

func except(keys, not []switchspec.Key) []switchspec.Key {
	return slices.DeleteFunc(keys, func(k switchspec.Key) bool { return slices.Contains(not, k) })
}

// number assigns numbers to a step's rules, or keeps them if the rules are the same. The result
// takes over the rules' use of their next hops.
func (a *Agent) number(s *groups.Step, was groups.Installation, rules bifurcation.Rules) (groups.Installation, error) {
	next, err := a.table.Number(s.Key, was, rules)
	if err != nil || next.Group == was.Group {
		a.uni.unuse(groups.Installation{Rules: rules}.Hops())
	}
	return next, at(a.name, err)
}

// forget frees an installation's numbers, after its entries have been removed from the switch.
func (a *Agent) forget(p groups.Installation) {
	if p.Installed() {
		a.table.Forget(p)
		a.uni.unuse(p.Hops())
	}
}

// writeLater posts an edit that must be made. It waits for the edit until ctx ends, or not at all
// while the switch is away; a goroutine then continues to wait.
func (a *Agent) writeLater(ctx context.Context, e edit, then func(), key groups.StepKey) {
	j := a.driver.post(e)
	finish := func(err error) {
		switch {
		case errors.Is(err, errOver): // the next agent reads the switch when it starts
		case err != nil:
			a.log.Error("the switch keeps what is no longer needed, until it is read again", "group", key, "error", err)
		default:
			then()
		}
	}
	if _, err := a.driver.there(ctx); err == nil {
		select {
		case err := <-j.done:
			finish(err)
			return
		case <-ctx.Done():
		}
	}
	a.wg.Go(func() { finish(<-j.done) })
}

// drop removes a step from the switch, and its branches from other switches. The caller has its
// turn. The step is removed from the table only when the caller leaves it; otherwise a step with
// the same key made meanwhile would be removed, too.
func (a *Agent) drop(ctx context.Context, s *groups.Step, merging edit) error {
	was, branches := a.table.Drop(s)
	var g errgroup.Group
	// The deletion must not depend on the caller's context: a remaining record would restore the
	// step.
	g.Go(func() error { return a.table.Persist(context.WithoutCancel(ctx), s, nil) })
	if was.Installed() || merging != nil {
		g.Go(func() error {
			a.writeLater(ctx, both(puts(nil, keysOf(was.Entities)), merging), func() { a.forget(was) }, s.Key)
			return nil
		})
	}
	err := g.Wait()
	var down errgroup.Group
	for k := range branches {
		down.Go(func() error { return a.peers.release(ctx, s, k) })
	}
	if err := down.Wait(); err != nil {
		a.log.Warn("another switch keeps a branch that is not needed, until the next sync", "group", s.Key, "error", err)
	}
	return err
}

// both combines two edits; the second may be nil.
func both(first, second edit) edit {
	if second == nil {
		return first
	}
	return func(d *draft) error {
		if err := first(d); err != nil {
			return err
		}
		return second(d)
	}
}

func keysOf(list []switchspec.Entity) []switchspec.Key {
	out := make([]switchspec.Key, 0, len(list))
	for _, e := range list {
		out = append(out, e.Key())
	}
	return out
}
