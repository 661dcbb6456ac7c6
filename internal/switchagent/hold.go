package switchagent

import (
	"context"
	"fmt"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A holding is another switch's request.
type holding struct {
	key      stepKey
	from     bifurcation.Switch
	sequence uint64
	spec
}

// take makes this switch deliver to receivers for another one.
func (a *Agent) take(ctx context.Context, h holding) error {
	if !a.cfg.Programmable {
		return fmt.Errorf("%w: this switch is configured to route only", bifurcation.ErrInvalid)
	}
	if len(h.Receivers) == 0 || h.Receivers[0].Addr != h.key.dst {
		return fmt.Errorf("%w: packets come addressed to %v, which is not the first receiver's address", bifurcation.ErrInvalid, h.key.dst)
	}
	if slices.Contains(h.Via, a.name) {
		return fmt.Errorf("%w: packets of group %v have passed switch %s before", bifurcation.ErrLoop, h.key.groupKey, a.name)
	}
	group := bifurcation.Group{Source: h.key.source, ID: h.key.id, Receivers: h.Receivers}
	if err := group.Validate(); err != nil {
		return err
	}
	if a.attached(h.key.source) {
		return fmt.Errorf("%w: sender %v is at switch %s itself, so its packets come from nowhere else", bifurcation.ErrLoop, h.key.source, a.name)
	}
	if err := a.settledRoutes(ctx); err != nil {
		return err
	}
	if err := a.resolveHosts(ctx, h.Receivers); err != nil {
		return err
	}
	s, err := a.enter(ctx, h.key)
	if err != nil {
		return err
	}
	defer a.leave(s)
	next, err := s.with(h)
	if err != nil {
		return err
	}
	was, held := s.holders[h.from]
	mine := holder{h.spec, h.sequence, time.Now().Add(a.cfg.Leases.Branch)}
	same := held && was.spec.equal(h.spec) && next.equal(s.spec)
	if same && !s.behind {
		a.setHolder(s, h.from, mine)
		return nil
	}
	c := change{strict: true, spec: next, unreached: len(s.holders) == 0}
	if !same {
		c.record = func() []byte { return a.record(s, next, h.from, &mine) }
	}
	if err := a.apply(ctx, s, c); err != nil {
		return err
	}
	a.setHolder(s, h.from, mine)
	return nil
}

func (a *Agent) setHolder(s *step, from bifurcation.Switch, h holder) {
	a.mu.Lock()
	s.holders[from] = &h
	a.mu.Unlock()
}

// with returns the step's spec after a switch's Hold. The highest generation wins; within a
// generation, holders must agree, because nothing in a packet shows which of them sent it.
func (s *step) with(h holding) (spec, error) {
	if s.group != nil {
		return spec{}, fmt.Errorf("%w: group %v was installed at this switch, and its packets come back", bifurcation.ErrLoop, h.key.groupKey)
	}
	if was, ok := s.holders[h.from]; ok && h.sequence < was.Sequence {
		return spec{}, &failure.Error{Sequence: was.Sequence, Cause: ErrStale,
			Text: fmt.Sprintf("%v: number %d, after %d", ErrStale, h.sequence, was.Sequence)}
	}
	next := h.spec
	next.Via = slices.Clone(h.Via)
	for from, o := range s.holders {
		if from == h.from {
			continue
		}
		if o.Generation > next.Generation {
			next.Generation, next.Receivers = o.Generation, o.Receivers
		} else if o.Generation == h.Generation && !planner.Equal(o.Receivers, h.Receivers) {
			return spec{}, fmt.Errorf("%w: switch %s reaches %d receivers by %v, and switch %s %d",
				bifurcation.ErrAmbiguous, from, len(o.Receivers), h.key.dst, h.from, len(h.Receivers))
		}
		for _, v := range o.Via {
			if !slices.Contains(next.Via, v) {
				next.Via = append(next.Via, v)
			}
		}
	}
	slices.Sort(next.Via)
	return next, nil
}

// endHold ends a switch's hold of a step, unless the switch has held it again since. The caller does
// not have the turn.
func (a *Agent) endHold(ctx context.Context, k stepKey, from bifurcation.Switch, sequence uint64) error {
	return a.endHoldIf(ctx, k, from, func(h *holder) bool { return h.Sequence <= sequence })
}

// endHoldIf ends a switch's hold if over returns true; over is called under Agent.mu.
func (a *Agent) endHoldIf(ctx context.Context, k stepKey, from bifurcation.Switch, over func(*holder) bool) error {
	a.mu.Lock()
	s := a.steps[k]
	a.mu.Unlock()
	if s == nil {
		return nil
	}
	s, err := a.enter(ctx, k)
	if err != nil {
		return err
	}
	defer a.leave(s)
	a.mu.Lock()
	if h := s.holders[from]; h == nil || !over(h) {
		a.mu.Unlock()
		return nil
	}
	delete(s.holders, from)
	last := len(s.holders) == 0
	a.mu.Unlock()
	if last {
		return a.drop(ctx, s, nil)
	}
	return a.persist(context.WithoutCancel(ctx), s, a.record(s, s.spec, from, nil))
}

// sync processes the list of everything that a switch holds here, as of a sequence number. Steps
// that are not on the list are no longer held. It returns those on the list that are missing here.
func (a *Agent) sync(ctx context.Context, from bifurcation.Switch, sequence uint64, held map[stepKey]uint64) (missing []stepKey) {
	var stale []stepKey
	until := time.Now().Add(a.cfg.Leases.Branch)
	seen := make(map[stepKey]bool, len(held))
	a.mu.Lock()
	for _, s := range a.steps {
		h := s.holders[from]
		want, ok := held[s.key]
		switch {
		case h == nil:
		case ok:
			h.expires = until
			seen[s.key] = h.Sequence == want
		case h.Sequence <= sequence:
			stale = append(stale, s.key)
		}
	}
	a.mu.Unlock()
	for k := range held {
		if !seen[k] {
			missing = append(missing, k)
		}
	}
	for _, k := range stale {
		a.log.Info("a branch is no longer held", "group", k, "switch", from)
		if err := a.endHold(ctx, k, from, sequence); err != nil {
			a.log.Warn("a branch that is no longer held stays for now", "group", k, "error", err)
		}
	}
	return missing
}

// expire drops groups and holds that were not renewed in time.
func (a *Agent) expire(ctx context.Context) {
	now := time.Now()
	type lapsed struct {
		key  stepKey
		from bifurcation.Switch
	}
	var branches []lapsed
	var groups []groupKey
	a.mu.Lock()
	for _, s := range a.steps {
		for from, h := range s.holders {
			if now.After(h.expires) {
				branches = append(branches, lapsed{s.key, from})
			}
		}
	}
	for k, g := range a.groups {
		if g.step != nil && now.After(g.expires) && a.start.settled.reached() {
			groups = append(groups, k)
		}
	}
	a.mu.Unlock()
	for _, k := range groups {
		a.log.Warn("a group's lease has ended, or it was given up", "group", k)
		if err := a.remove(ctx, k, mcrdmav1.WatchResponse_TYPE_EXPIRED); err != nil {
			a.log.Warn("an expired group was not removed", "group", k, "error", err)
		}
	}
	for _, l := range branches {
		a.log.Warn("a branch was not renewed in time", "group", l.key, "switch", l.from)
		if err := a.endHoldIf(ctx, l.key, l.from, func(h *holder) bool { return time.Now().After(h.expires) }); err != nil {
			a.log.Warn("an expired branch was not released", "group", l.key, "error", err)
		}
	}
}

// tick expires leases, and recomputes steps that are not optimal yet.
func (a *Agent) tick(ctx context.Context) {
	expiry := time.NewTicker(min(a.cfg.Leases.Group/4, a.cfg.Leases.Branch/4, time.Second))
	defer expiry.Stop()
	again := time.NewTicker(time.Minute)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-expiry.C:
			a.expire(ctx)
		case <-again.C:
			a.rerun.wake()
		}
	}
}
