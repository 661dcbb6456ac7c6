package switchagent

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
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
	var all errgroup.Group
	all.SetLimit(rerunWidth)
	for _, s := range a.table.Wanted() {
		if a.outdated(s) {
			all.Go(func() error { return a.remakeOne(ctx, s) })
		}
	}
	return all.Wait()
}

// outdated reports whether a step's plan may have changed.
func (a *Agent) outdated(s *groups.Step) bool {
	now := a.table.State(s)
	p, err := a.plan(s.Key, now.Spec, nil, true)
	if err != nil {
		return true
	}
	a.uni.unuse(p.Installation.Hops())
	return !now.Same(p.State)
}

func (a *Agent) remakeOne(ctx context.Context, s *groups.Step) error {
	ctx, cancel := context.WithTimeout(ctx, 2*callTime)
	defer cancel()
	if err := a.table.EnterAgain(ctx, s); err != nil {
		return err
	}
	defer a.table.Leave(s)
	if !s.Needed() {
		return nil
	}
	g, sp := s.Group(), a.table.State(s).Spec
	if g != nil {
		sp = g.Spec()
	}
	a.metrics.remakes.Inc()
	err := a.apply(ctx, s, change{spec: sp})
	if err != nil {
		a.table.Change(s, func(now *groups.State) { now.Problems = []string{err.Error()} })
		a.log.Warn("a group's copies cannot be made as they should", "group", s.Key, "error", err)
	}
	if g != nil {
		a.tell(mcrdmav1.WatchResponse_TYPE_UPDATED, a.table.View(g))
	}
	return err
}
