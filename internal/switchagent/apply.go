package switchagent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

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
	spec   spec
	// unreached: no packets arrive before the change is done. The sender begins when the group is
	// installed, and another switch turns packets here when its Hold has returned.
	unreached bool
	// merging is the change's edit at the merge point, and unmerging reverts it; nil: none.
	merging, unmerging edit
	begin              *merging // whose baseline is read for the record; nil: none
	// record is what to store once the step is as planned; nil: it is stored already.
	record func() []byte
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
func (a *Agent) apply(ctx context.Context, s *step, c change) error {
	var early []netip.Addr
	unreached := false // a switch did not answer, and is bypassed
	for {
		p, err := a.plan(s.key, c.spec, early, !c.strict)
		if err != nil {
			return err
		}
		if c.record == nil && c.merging == nil && p.same(s) {
			a.uni.unuse(nextHops(p.rules))
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
		a.log.Info("a branch is split early", "group", s.key, "receivers", len(b.receivers), "error", b.err)
	}
}

// A transition is a step on its way to a plan.
type transition struct {
	*planner.Transition
	s         *step
	p         plan
	c         change
	was, next installation
	record    []byte // before
}

// drainTime is how long packets may be in flight to other switches: the time in which a gigabit
// link drains a large buffer.
const drainTime = 100 * time.Millisecond

// transit takes a step to a plan, in the order of package planner. If anything fails before packets
// turn, nothing has changed.
func (a *Agent) transit(ctx context.Context, s *step, p plan, c change) (err error) {
	t := transition{s: s, p: p, c: c, was: s.installation, record: s.persisted}
	if t.next, err = a.number(s, p.rules); err != nil {
		return err
	}
	fresh := t.next.group != t.was.group
	if err := a.uni.writeHops(ctx); err != nil {
		if fresh {
			a.forget(t.next)
		}
		return err
	}
	t.Transition = planner.Begin(planner.Change{Was: s.branches, Next: p.branches, Receivers: p.spec.Receivers,
		Again: s.behind || s.spec.Generation != p.spec.Generation, Copies: t.next.installed(), Fresh: fresh,
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
			a.mu.Lock()
			s.spec, s.installation, s.branches, s.problems, s.behind = p.spec, t.next, p.branches, p.problems, false
			s.recomputes = p.recomputes
			s.coming = nil
			a.mu.Unlock()
			if fresh {
				a.forget(t.was)
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
			a.log.Warn("another switch or the state keeps what is not needed, until the next sync", "group", s.key, "error", o.err)
		}
		if t.Done(o.id, o.err); t.State() == planner.Undoing && at != planner.Undoing {
			undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			ctx = undoing
			a.mu.Lock()
			s.coming = nil // before the branches are released, because ahead would take them for held
			a.mu.Unlock()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s.coming, s.behind = nil, s.behind || t.Behind()
	return t.Err()
}

// perform carries an action out.
func (a *Agent) perform(ctx context.Context, t transition, x planner.Action) error {
	was, next, s := t.was.entities, t.next.entities, t.s
	switch x.Kind {
	case planner.Early:
		return a.driver.write(ctx, puts(next[:len(next)-1], nil)) // the match is the last
	case planner.Turn:
		return a.driver.write(ctx, both(t.turn(next, was), t.c.merging))
	case planner.TurnBack:
		a.writeLater(ctx, both(t.turn(was, next), t.c.unmerging), func() {
			if t.next.group != t.was.group {
				a.forget(t.next)
			}
		}, s.key)
	case planner.Record:
		if t.c.begin != nil {
			if err := a.begin(ctx, t.c.begin); err != nil {
				return err
			}
		}
		return a.persist(ctx, s, t.c.record())
	case planner.RecordBack:
		return a.persist(ctx, s, t.record)
	case planner.Hold:
		sp := t.p.spec
		if x.Back {
			sp = s.spec
		}
		if err := a.hold(ctx, s, sp, x.Branch, x.Receivers); err != nil {
			return &branchError{x.Receivers, err}
		}
	case planner.Drain:
		select {
		case <-time.After(drainTime):
		case <-ctx.Done():
		}
	case planner.Release:
		return a.release(ctx, s, x.Branch)
	case planner.Route:
		a.mu.Lock()
		s.coming = t.During()
		a.mu.Unlock()
		return a.sameWays(ctx, t.p.ways)
	}
	return nil
}

// turn turns packets from the old entries to the new ones. New entries are inserted first, so one
// edit can make the whole change on this switch.
func (t transition) turn(to, from []switchspec.Entity) edit {
	if t.next.group == t.was.group {
		return puts(nil, nil)
	}
	return puts(to, except(keysOf(from), keysOf(to)))
}

func except(keys, not []switchspec.Key) []switchspec.Key {
	return slices.DeleteFunc(keys, func(k switchspec.Key) bool { return slices.Contains(not, k) })
}

// number assigns numbers to a step's rules, or keeps them if the rules are the same. The result
// takes over the rules' use of their next hops.
func (a *Agent) number(s *step, rules bifurcation.Rules) (installation, error) {
	hops := nextHops(rules)
	if s.installation.installed() && reflect.DeepEqual(rules, s.installation.rules) {
		a.uni.unuse(hops)
		return s.installation, nil
	}
	if rules.Empty() {
		return installation{rules: rules}, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	group, err := a.groupNumbers.take(1)
	if err != nil {
		a.uni.unuse(hops)
		return installation{}, at(a.name, err)
	}
	pre, err := a.preNumbers.take(len(rules.PREGroups))
	if err != nil {
		a.groupNumbers.give(group, 1)
		a.uni.unuse(hops)
		return installation{}, at(a.name, err)
	}
	return installation{rules: rules, group: group, firstPRE: pre, entities: entities(s.key, rules, group, pre)}, nil
}

// forget frees an installation's numbers, after its entries have been removed from the switch.
func (a *Agent) forget(p installation) {
	if !p.installed() {
		return
	}
	a.mu.Lock()
	a.groupNumbers.give(p.group, 1)
	a.preNumbers.give(p.firstPRE, len(p.rules.PREGroups))
	a.mu.Unlock()
	a.uni.unuse(nextHops(p.rules))
}

// writeLater posts an edit that must be made. It waits for the edit until ctx ends, or not at all
// while the switch is away; a goroutine then continues to wait.
func (a *Agent) writeLater(ctx context.Context, e edit, then func(), key stepKey) {
	j := a.driver.post(e)
	finish := func(err error) {
		if err != nil {
			a.log.Error("the switch keeps what is no longer needed, until it is read again", "group", key, "error", err)
			return
		}
		then()
	}
	if _, err := a.driver.there(ctx); err == nil {
		select {
		case err := <-j.done:
			finish(err)
			return
		case <-ctx.Done():
		}
	}
	a.background(func(context.Context) { finish(<-j.done) })
}

// drop removes a step from the switch, and its branches from other switches. The caller has its
// turn. The step is removed from the table only when the caller leaves it; otherwise a step with
// the same key made meanwhile would be removed, too.
func (a *Agent) drop(ctx context.Context, s *step, merging edit) error {
	a.mu.Lock()
	was, branches := s.installation, s.branches
	s.installation, s.branches, s.group = installation{}, nil, nil
	a.mu.Unlock()
	var g errgroup.Group
	// The deletion must not depend on the caller's context: a remaining record would restore the
	// step.
	g.Go(func() error { return a.persist(context.WithoutCancel(ctx), s, nil) })
	if was.installed() || merging != nil {
		g.Go(func() error {
			a.writeLater(ctx, both(puts(nil, keysOf(was.entities)), merging), func() { a.forget(was) }, s.key)
			return nil
		})
	}
	err := g.Wait()
	var down errgroup.Group
	for k := range branches {
		down.Go(func() error { return a.release(ctx, s, k) })
	}
	if err := down.Wait(); err != nil {
		a.log.Warn("another switch keeps a branch that is not needed, until the next sync", "group", s.key, "error", err)
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

// persist stores a step's record, or deletes it if it is nil.
func (a *Agent) persist(ctx context.Context, s *step, record []byte) error {
	if err := a.store.Commit(ctx, storeEdit(s.key, record)); err != nil {
		return fmt.Errorf("%w: the agent's state cannot be stored: %w", ErrNotReady, err)
	}
	a.mu.Lock()
	s.persisted = record
	a.mu.Unlock()
	return nil
}
