package switchagent

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// aheadTime bounds how long new routes wait for other switches. Their hellos arrive, so only a very
// busy agent takes that long.
const aheadTime = time.Second

// writeWays writes routes to the switch. First it makes the next switches hold the steps that make
// no copies here: their packets follow the routes, and would reach switches that do not know the
// group yet. If a switch does not answer in time, remake repairs that, after a gap. Routes that
// change meanwhile are written next.
func (a *Agent) writeWays(ctx context.Context) (of uint64, err error) {
	for done := false; !done && err == nil; {
		want, next := a.uni.waysOf(a.uncopied())
		of = want.ways
		done, err = a.writeWaysOf(ctx, want, next)
	}
	return of, err
}

// sameWays makes sure that the switch has the routes by which a step was planned, or
// returns errOutdated. The step's own branches are held.
func (a *Agent) sameWays(ctx context.Context, of uint64) error {
	for {
		have := a.uni.written()
		if have == of {
			return nil
		}
		want, next := a.uni.waysOf(a.uncopied())
		if have > of || want.ways != of {
			return errOutdated
		}
		if _, err := a.writeWaysOf(ctx, want, next); err != nil {
			return err
		}
	}
}

func (a *Agent) writeWaysOf(ctx context.Context, want wanted, next map[*step][]bifurcation.Switch) (done bool, err error) {
	a.ahead(ctx, next)
	return a.uni.writeWays(ctx, want)
}

// uncopied returns the steps that make no copies here, or will make none.
func (a *Agent) uncopied() (steps []*step) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.steps {
		if s.coming != nil || !s.installation.installed() && s.needed() {
			steps = append(steps, s)
		}
	}
	return steps
}

// waysOf returns the desired entries, and the switches that the steps' packets then reach.
func (u *uni) waysOf(steps []*step) (w wanted, next map[*step][]bifurcation.Switch) {
	next = make(map[*step][]bifurcation.Switch, len(steps))
	u.read(func(t *unicast.Table) {
		for _, s := range steps {
			if route, err := t.Resolve(s.key.dst); err == nil {
				next[s] = route.Next
			}
		}
		w = wantedOf(t)
	})
	return w, next
}

// ahead makes switches hold steps that make no copies here.
func (a *Agent) ahead(ctx context.Context, next map[*step][]bifurcation.Switch) {
	ctx, cancel := context.WithTimeout(ctx, aheadTime)
	defer cancel()
	var all errgroup.Group
	all.SetLimit(rerunWidth)
	for s, to := range next {
		if len(a.lacking(s, to)) > 0 {
			all.Go(func() error { return a.announce(ctx, s, to) })
		}
	}
	if err := all.Wait(); err != nil {
		a.log.Info("a group's packets may come to a switch before it knows the group", "error", err)
	}
}

// lacking returns the switches that do not hold all of a step.
func (a *Agent) lacking(s *step, to []bifurcation.Switch) (keys []branchKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range to {
		k := branchKey{Next: n, Dst: s.key.dst}
		if s.coming[k] == nil && (s.coming != nil || !planner.Equal(s.branches[k], s.spec.Receivers)) {
			keys = append(keys, k)
		}
	}
	return keys
}

// announce makes switches hold all of a step that makes no copies.
func (a *Agent) announce(ctx context.Context, s *step, to []bifurcation.Switch) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer a.leave(s)
	if s.gone || s.installation.installed() || len(s.spec.Receivers) == 0 || s.spec.Receivers[0].Addr != s.key.dst {
		return nil
	}
	var all errgroup.Group
	for _, k := range a.lacking(s, to) {
		all.Go(func() error {
			if err := a.hold(ctx, s, s.spec, k, s.spec.Receivers); err != nil {
				return err
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if s.branches == nil {
				s.branches = planner.Branches{}
			}
			s.branches[k] = s.spec.Receivers
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return fmt.Errorf("group %v: %w", s.key, err)
	}
	return nil
}
