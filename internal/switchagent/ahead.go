package switchagent

import (
	"context"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// aheadTime bounds how long new routes wait for other switches. These are ones whose
// hellos come in, so that only an agent that is very busy takes that long.
const aheadTime = time.Second

// ahead sees to the steps that make no copies, before new routes are put on the
// switch: their packets go by them, and would come to switches that do not know
// the group yet. What does not work in time is left to remake, after a gap.
func (a *Agent) ahead(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, aheadTime)
	defer cancel()
	a.mu.Lock()
	var steps []*step
	for _, s := range a.steps {
		if !s.placed.installed() && (s.group != nil || len(s.holders) > 0) {
			steps = append(steps, s)
		}
	}
	a.mu.Unlock()
	var wg sync.WaitGroup
	slots := make(chan struct{}, rerunWidth)
	for _, s := range steps {
		if len(a.strange(s)) == 0 {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			a.announce(ctx, s)
		})
	}
	wg.Wait()
}

// strange are the switches that a step's packets will come to by the routes of now,
// and that do not hold all of it.
func (a *Agent) strange(s *step) (keys []branchKey) {
	a.uni.mu.Lock()
	route, err := a.uni.table.Resolve(s.key.dst)
	a.uni.mu.Unlock()
	if err != nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range route.Next {
		if k := (branchKey{n, s.key.dst}); !equalReceivers(s.branches[k], s.spec.receivers) {
			keys = append(keys, k)
		}
	}
	return keys
}

// announce has the switches to come hold all of a step that makes no copies.
func (a *Agent) announce(ctx context.Context, s *step) {
	if s.lock(ctx) != nil {
		return
	}
	defer a.leave(s)
	if s.gone || s.placed.installed() || len(s.spec.receivers) == 0 || s.spec.receivers[0].Addr != s.key.dst {
		return
	}
	var g gather
	for _, k := range a.strange(s) {
		g.run(func() error {
			if err := a.hold(ctx, s, s.spec, k, s.spec.receivers); err != nil {
				return err
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if s.branches == nil {
				s.branches = map[branchKey][]bifurcation.Receiver{}
			}
			s.branches[k] = s.spec.receivers
			return nil
		})
	}
	if err := g.wait(); err != nil {
		a.log.Info("a group's packets may come to a switch before it knows the group", "group", s.key, "error", err)
	}
}
