package switchagent

import (
	"context"
	"fmt"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// take makes this switch deliver to receivers for another one.
func (a *Agent) take(ctx context.Context, b groups.Branch, h groups.Holder) error {
	if !a.cfg.Programmable {
		return fmt.Errorf("%w: this switch is configured to route only", bifurcation.ErrInvalid)
	}
	if len(h.Receivers) == 0 || h.Receivers[0].Addr != b.Key.Dst {
		return fmt.Errorf("%w: packets come addressed to %v, which is not the first receiver's address", bifurcation.ErrInvalid, b.Key.Dst)
	}
	if slices.Contains(h.Via, a.name) {
		return fmt.Errorf("%w: packets of group %v have passed switch %s before", bifurcation.ErrLoop, b.Key.Key, a.name)
	}
	group := bifurcation.Group{Source: b.Key.Source, ID: b.Key.ID, Receivers: h.Receivers}
	if err := group.Validate(); err != nil {
		return err
	}
	if a.attached(b.Key.Source) {
		return fmt.Errorf("%w: sender %v is at switch %s itself, so its packets come from nowhere else", bifurcation.ErrLoop, b.Key.Source, a.name)
	}
	if err := a.settledRoutes(ctx); err != nil {
		return err
	}
	a.resolveHosts(ctx, h.Receivers)
	s, err := a.table.Enter(ctx, b.Key)
	if err != nil {
		return err
	}
	defer a.table.Leave(s)
	next, err := a.table.Hold(s, b.From, h, time.Now())
	if err != nil || next.Done {
		return err
	}
	c := change{strict: true, spec: next.Spec, unreached: next.First}
	if next.Record != nil {
		c.record = func(ctx context.Context) error { return a.table.Persist(ctx, s, next.Record) }
	}
	if err := a.apply(ctx, s, c); err != nil {
		return err
	}
	a.table.Held(s, b.From, h, time.Now())
	return nil
}

// endHold ends a switch's hold of a step. The caller does not have the turn.
func (a *Agent) endHold(ctx context.Context, b groups.Branch, over func(*groups.Holder) bool) error {
	if !a.table.Has(b.Key) {
		return nil
	}
	s, err := a.table.Enter(ctx, b.Key)
	if err != nil {
		return err
	}
	defer a.table.Leave(s)
	record, ended := a.table.Unhold(s, b.From, over)
	switch {
	case !ended:
		return nil
	case record == nil:
		return a.drop(ctx, s, nil)
	}
	return a.table.Persist(context.WithoutCancel(ctx), s, record)
}

// sync processes the list of everything that a switch holds here, as of a sequence number. Steps
// that are not on the list are no longer held. It returns those on the list that are missing here.
func (a *Agent) sync(ctx context.Context, from bifurcation.Switch, sequence uint64, list map[groups.StepKey]uint64) []groups.StepKey {
	missing, stale := a.table.Sync(from, sequence, list, time.Now())
	for _, k := range stale {
		a.log.Info("a branch is no longer held", "group", k, "switch", from)
		if err := a.endHold(ctx, groups.Branch{Key: k, From: from}, groups.UpTo(sequence)); err != nil {
			a.log.Warn("a branch that is no longer held stays for now", "group", k, "error", err)
		}
	}
	return missing
}

// expire drops groups and holds that were not renewed in time.
func (a *Agent) expire(ctx context.Context) {
	ended, branches := a.table.Overdue(time.Now())
	if !a.start.settled.reached() {
		ended = nil
	}
	for _, k := range ended {
		a.log.Warn("a group's lease has ended, or it was given up", "group", k)
		if err := a.remove(ctx, k, mcrdmav1.WatchResponse_TYPE_EXPIRED); err != nil {
			a.log.Warn("an expired group was not removed", "group", k, "error", err)
		}
	}
	for _, b := range branches {
		a.log.Warn("a branch was not renewed in time", "group", b.Key, "switch", b.From)
		if err := a.endHold(ctx, b, groups.Lapsed); err != nil {
			a.log.Warn("an expired branch was not released", "group", b.Key, "error", err)
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
