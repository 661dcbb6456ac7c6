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

	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// undoTime bounds how long a failed change is rolled back. Others learn what is left
// by the next Sync.
const undoTime = 3 * time.Second

// A change takes a step from what it is to a plan.
type change struct {
	strict bool // all or nothing; otherwise best effort
	spec   spec
	// merging is the merge point's edit that belongs to the change, and
	// unmerging reverts it; nil: none.
	merging, unmerging edit
	// record is what to store once the step is as planned; nil: it is stored already.
	record func() []byte
}

// A branchError tells which receivers another switch would not take.
type branchError struct {
	receivers []bifurcation.Receiver
	err       error
}

func (e *branchError) Error() string { return e.err.Error() }
func (e *branchError) Unwrap() error { return e.err }

// apply makes a change to a step whose turn the caller has. If another switch
// cannot tell a branch from another one, or fails and the change is not strict,
// that branch's receivers get copies of their own from here.
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
			a.detours.Store(true)
		}
		var b *branchError
		if !errors.As(err, &b) || len(early) >= len(c.spec.Receivers) ||
			c.strict && !errors.Is(err, bifurcation.ErrAmbiguous) || ctx.Err() != nil {
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

// transit takes a step to a plan: new entries are made here and at the next
// switches, then packets are switched to them, then the old ones are deleted. If
// anything fails before the switch, all is as it was.
func (a *Agent) transit(ctx context.Context, s *step, p plan, c change) error {
	t := transition{was: s.installation, record: s.persisted, holds: map[branchKey][]bifurcation.Receiver{}}
	// A receiver that moves between branches stays in the first until packets turned.
	during := map[branchKey][]bifurcation.Receiver{}
	for k, r := range p.branches {
		during[k] = union(r, s.branches[k], p.spec.Receivers)
		if s.behind || s.spec.Generation != p.spec.Generation || !equalReceivers(during[k], s.branches[k]) {
			t.holds[k] = during[k]
		}
	}
	var err error
	if t.next, err = a.number(s, p.rules); err != nil {
		return err
	}
	if err := a.writeHops(ctx); err != nil {
		if t.fresh() {
			a.forget(t.next)
		}
		return err
	}
	err = a.prepare(ctx, s, t, p, c)
	if err == nil && p.rules.Empty() { // packets that are not copied follow the routes
		a.mu.Lock()
		s.coming = during
		a.mu.Unlock()
		err = a.sameWays(ctx, p.ways)
	}
	if err == nil && !t.atOnce(c) {
		err = a.driver.write(ctx, both(t.turn(), c.merging))
	}
	if err != nil {
		a.mu.Lock()
		s.coming = nil
		a.mu.Unlock()
		a.undo(ctx, s, t, c)
		return err
	}
	a.mu.Lock()
	s.coming = nil
	var gone []branchKey
	for k := range s.branches {
		if _, ok := p.branches[k]; !ok {
			gone = append(gone, k)
		}
	}
	s.spec, s.installation, s.early, s.branches, s.problems, s.behind = p.spec, t.next, p.early, during, p.problems, false
	a.mu.Unlock()
	if t.fresh() {
		a.forget(t.was)
	}
	a.trim(ctx, s, p, gone)
	return nil
}

// A transition is what transit has to do, and to undo if it fails.
type transition struct {
	was, next installation
	record    []byte                               // before
	holds     map[branchKey][]bifurcation.Receiver // at other switches
}

// fresh says that the step gets new entities.
func (t transition) fresh() bool { return t.next.group != t.was.group }

// atOnce says that packets can be turned while the rest is prepared: nothing has to
// be done first.
func (t transition) atOnce(c change) bool {
	return len(t.holds) == 0 && c.merging == nil && (t.next.installed() || !t.fresh())
}

// turn turns packets from the old entries to the new ones. As the switch inserts new
// entries first, it can do all of a change on this switch.
func (t transition) turn() edit {
	if !t.fresh() {
		return puts(nil, nil)
	}
	return puts(t.next.entities, except(keysOf(t.was.entities), keysOf(t.next.entities)))
}

func except(keys, not []switchspec.Key) []switchspec.Key {
	return slices.DeleteFunc(keys, func(k switchspec.Key) bool { return slices.Contains(not, k) })
}

// prepare does in parallel all that does not affect packets yet. Packets that need not
// wait for it are turned at once. Merging waits for the record: the switch must not know
// a later use of a slot than the agent's state.
func (a *Agent) prepare(ctx context.Context, s *step, t transition, p plan, c change) error {
	var g errgroup.Group
	switch {
	case len(t.holds) > 0 && t.fresh() && t.next.installed():
		early := puts(t.next.entities[:len(t.next.entities)-1], nil) // the match waits
		g.Go(func() error { return a.driver.write(ctx, early) })
	case t.atOnce(c) && t.fresh():
		g.Go(func() error { return a.driver.write(ctx, t.turn()) })
	}
	if c.record != nil {
		record := c.record()
		g.Go(func() error { return a.persist(ctx, s, record) })
	}
	for k, r := range t.holds {
		g.Go(func() error {
			if err := a.hold(ctx, s, p.spec, k, r); err != nil {
				return &branchError{r, err}
			}
			return nil
		})
	}
	return g.Wait()
}

// number gives a step's rules numbers, or those that it has if the rules are the same.
// The result takes over the rules' use of their next hops.
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

// forget frees an installation's numbers, when nothing of it is on the switch.
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

// writeLater posts an edit that must be made: it waits for it until ctx ends, and then
// leaves the wait to a goroutine.
func (a *Agent) writeLater(ctx context.Context, e edit, then func(), key stepKey) {
	j := a.driver.post(e)
	finish := func(err error) {
		if err != nil {
			a.log.Error("the switch keeps what is no longer needed, until it is read again", "group", key, "error", err)
			return
		}
		then()
	}
	select {
	case err := <-j.done:
		finish(err)
	case <-ctx.Done():
		a.background(func(context.Context) { finish(<-j.done) })
	}
}

// undo rolls back what a transit has done.
func (a *Agent) undo(ctx context.Context, s *step, t transition, c change) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	var g errgroup.Group
	if t.fresh() || c.merging != nil {
		back := puts(t.was.entities, except(keysOf(t.next.entities), keysOf(t.was.entities)))
		if !t.fresh() {
			back = puts(nil, nil)
		}
		g.Go(func() error {
			a.writeLater(ctx, both(back, c.unmerging), func() {
				if t.fresh() {
					a.forget(t.next)
				}
			}, s.key)
			return nil
		})
	}
	if c.record != nil {
		g.Go(func() error { return a.persist(ctx, s, t.record) })
	}
	for k := range t.holds {
		g.Go(func() error {
			if r, ok := s.branches[k]; ok {
				return a.hold(ctx, s, s.spec, k, r)
			}
			return a.release(ctx, s, k)
		})
	}
	if err := g.Wait(); err != nil {
		a.mu.Lock()
		s.behind = len(s.branches) > 0
		a.mu.Unlock()
		a.log.Warn("a change was not taken back everywhere; the next sync will", "group", s.key, "error", err)
	}
}

// trim releases what packets no longer need at other switches.
func (a *Agent) trim(ctx context.Context, s *step, p plan, gone []branchKey) {
	var g errgroup.Group
	for _, k := range gone {
		g.Go(func() error { return a.release(ctx, s, k) })
	}
	smaller := map[branchKey][]bifurcation.Receiver{}
	for k, r := range p.branches {
		if !equalReceivers(r, s.branches[k]) {
			smaller[k] = r
		}
	}
	for k, r := range smaller {
		g.Go(func() error {
			if err := a.hold(ctx, s, p.spec, k, r); err != nil {
				return err
			}
			a.mu.Lock()
			s.branches[k] = r
			a.mu.Unlock()
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		a.mu.Lock()
		s.behind = true
		a.mu.Unlock()
		a.log.Warn("another switch keeps receivers that it need not reach, until the next sync", "group", s.key, "error", err)
	}
}

// drop removes a step from the switch, and its branches from the others. The caller
// has its turn; the step is gone only when the caller leaves it, else a step with the
// same key made meanwhile would be removed too.
func (a *Agent) drop(ctx context.Context, s *step, merging edit) error {
	a.mu.Lock()
	was, branches := s.installation, s.branches
	s.installation, s.branches, s.group = installation{}, nil, nil
	a.mu.Unlock()
	var g errgroup.Group
	// The caller may not wait so long: a record that stays would come back.
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

// union is what a branch reaches while packets turn: its receivers, and its former
// ones that the step still has elsewhere. The order is the group's.
func union(next, was, all []bifurcation.Receiver) []bifurcation.Receiver {
	if len(was) == 0 || equalReceivers(next, was) {
		return next
	}
	var out []bifurcation.Receiver
	for _, r := range all {
		same := func(x bifurcation.Receiver) bool { return equalReceiver(x, r) }
		if slices.ContainsFunc(next, same) || slices.ContainsFunc(was, same) {
			out = append(out, r)
		}
	}
	return out
}

// both makes one edit of two; the second may be nil.
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
