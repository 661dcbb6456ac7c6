package switchagent

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// rerunWidth is the number of steps that are changed concurrently.
const rerunWidth = 128

// follow makes the switch, and the trees of the groups, follow the unicast table.
func (a *Agent) follow(ctx context.Context) {
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.rerun:
		case <-retry.C:
		}
		begun := time.Now()
		if err := a.followOnce(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("the switch does not follow the routes yet", "error", err)
			retry.Reset(time.Second)
		}
		a.metrics.rerunTime.Observe(time.Since(begun).Seconds())
	}
}

// followOnce writes new routes to the switch, recomputes all steps that they affect, and then
// removes entries that no group needs any more.
func (a *Agent) followOnce(ctx context.Context) error {
	if !a.start.adopted.reached() {
		return nil // repeated when the routes have settled
	}
	if !a.start.settled.reached() {
		return a.uni.writeWhole(ctx, a.uni.wanted().ways) // the table keeps the adopted routes
	}
	of, err := a.writeWays(ctx)
	if err != nil {
		return err
	}
	err = a.remake(ctx)
	// Routes that have changed since are written next: they have woken follow.
	if err := a.uni.writeWhole(ctx, of); err != nil {
		return err
	}
	if !a.start.restored.reached() {
		a.start.restored.reach()
	}
	return err
}

// remake makes the steps again whose plans have changed. Those that cannot be made as planned stay
// unchanged, and their problems are reported.
func (a *Agent) remake(ctx context.Context) error {
	a.mu.Lock()
	steps := make([]*step, 0, len(a.steps))
	for _, s := range a.steps {
		if s.group != nil && !s.group.void || len(s.holders) > 0 {
			steps = append(steps, s)
		}
	}
	a.mu.Unlock()
	var all errgroup.Group
	all.SetLimit(rerunWidth)
	for _, s := range steps {
		if a.outdated(s) {
			all.Go(func() error { return a.remakeOne(ctx, s) })
		}
	}
	return all.Wait()
}

// outdated reports whether a step's plan may have changed.
func (a *Agent) outdated(s *step) bool {
	a.mu.Lock()
	sp, gone := s.spec, s.gone
	a.mu.Unlock()
	if gone {
		return false
	}
	p, err := a.plan(s.key, sp, nil, true)
	if err != nil {
		return true
	}
	defer a.uni.unuse(nextHops(p.rules))
	a.mu.Lock()
	defer a.mu.Unlock()
	return !p.same(s)
}

func (a *Agent) remakeOne(ctx context.Context, s *step) error {
	ctx, cancel := context.WithTimeout(ctx, 2*callTime)
	defer cancel()
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer a.leave(s)
	if s.gone || !s.needed() {
		return nil
	}
	sp := s.spec
	if s.group != nil {
		sp = s.group.spec()
	}
	a.metrics.remakes.Inc()
	err := a.apply(ctx, s, change{spec: sp})
	if err != nil {
		a.mu.Lock()
		s.problems = []string{err.Error()}
		a.mu.Unlock()
		a.log.Warn("a group's copies cannot be made as they should", "group", s.key, "error", err)
	}
	if s.group != nil {
		a.tell(mcrdmav1.WatchResponse_TYPE_UPDATED, s.group.Source, a.describe(s.group))
	}
	return err
}
