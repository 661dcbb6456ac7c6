package switchagent

import (
	"context"
	"fmt"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
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
		want, next := a.uni.waysOf(a.table.Uncopied())
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
		want, next := a.uni.waysOf(a.table.Uncopied())
		if have > of || want.ways != of {
			return errOutdated
		}
		if _, err := a.writeWaysOf(ctx, want, next); err != nil {
			return err
		}
	}
}

func (a *Agent) writeWaysOf(ctx context.Context, want wanted, next map[*groups.Step][]bifurcation.Switch) (done bool, err error) {
	a.ahead(ctx, next)
	return a.uni.writeWays(ctx, want)
}

// waysOf returns the desired entries, and the switches that the steps' packets then reach.
func (u *uni) waysOf(steps []*groups.Step) (w wanted, next map[*groups.Step][]bifurcation.Switch) {
	next = make(map[*groups.Step][]bifurcation.Switch, len(steps))
	u.with(func(t *unicast.Table) {
		for _, s := range steps {
			if route, err := t.Resolve(s.Key.Dst); err == nil {
				next[s] = route.Next
			}
		}
		w = wantedOf(t)
	})
	return w, next
}

// ahead makes switches hold steps that make no copies here.
func (a *Agent) ahead(ctx context.Context, next map[*groups.Step][]bifurcation.Switch) {
	ctx, cancel := context.WithTimeout(ctx, aheadTime)
	defer cancel()
	var all errgroup.Group
	all.SetLimit(rerunWidth)
	for s, to := range next {
		if len(a.table.State(s).Lacking(s.Key.Dst, to)) > 0 {
			all.Go(func() error { return a.announce(ctx, s, to) })
		}
	}
	if err := all.Wait(); err != nil {
		a.log.Info("a group's packets may come to a switch before it knows the group", "error", err)
	}
}

// announce makes switches hold all of a step that makes no copies.
func (a *Agent) announce(ctx context.Context, s *groups.Step, to []bifurcation.Switch) error {
	if err := a.table.EnterAgain(ctx, s); err != nil {
		return err
	}
	defer a.table.Leave(s)
	st := a.table.State(s)
	if !s.Needed() || st.Installation.Installed() || len(st.Spec.Receivers) == 0 || st.Spec.Receivers[0].Addr != s.Key.Dst {
		return nil
	}
	var all errgroup.Group
	for _, k := range st.Lacking(s.Key.Dst, to) {
		all.Go(func() error {
			err := a.peers.hold(ctx, s, st.Spec, k, st.Spec.Receivers)
			if err == nil {
				a.table.Change(s, func(now *groups.State) {
					now.Branches = maps.Collect(maps.All(now.Branches))
					now.Branches[k] = st.Spec.Receivers
				})
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return fmt.Errorf("group %v: %w", s.Key, err)
	}
	return nil
}
