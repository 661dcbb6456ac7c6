package switchagent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// install installs a group in the whole tree, or changes nothing.
func (a *Agent) install(ctx context.Context, in groups.Info) error {
	if in.Address == (netip.Addr{}) && len(in.Receivers) > 0 {
		in.Address = in.Receivers[0].Addr
	}
	if err := a.check(in.Group); err != nil {
		return err
	}
	if _, err := a.driver.there(ctx); err != nil {
		return err
	}
	if err := a.settledRoutes(ctx); err != nil {
		return err
	}
	if !a.attached(in.Source) {
		return a.notAttached(in.Source)
	}
	a.resolveHosts(ctx, in.Receivers)
	s, err := a.table.Enter(ctx, in.StepKey())
	if err != nil {
		return err
	}
	defer a.table.Leave(s)
	g, there, err := a.table.Claim(in, s, time.Now())
	if there || err != nil {
		return err
	}
	m := g.Merging()
	c := change{strict: true, spec: g.Spec(), unreached: true, merging: a.mergePut(m), unmerging: a.mergeDelete(m), record: func(ctx context.Context) error {
		if err := a.begin(ctx, m); err != nil {
			return err
		}
		return a.table.Store(ctx, s, g)
	}}
	if err := a.apply(ctx, s, c); err != nil {
		a.table.Remove(g)
		return err
	}
	a.tell(mcrdmav1.WatchResponse_TYPE_INSTALLED, a.table.Confirm(g, s))
	return nil
}

func (a *Agent) check(g bifurcation.Group) error {
	if err := g.Validate(); err != nil {
		return err
	}
	if max := a.cfg.Limits.Receivers; max > 0 && len(g.Receivers) > max {
		return fmt.Errorf("%w: %d, and this switch is configured to take %d", bifurcation.ErrTooManyReceivers, len(g.Receivers), max)
	}
	return nil
}

// notAttached is the error of a group whose sender is at another switch; it names that
// switch if the configuration does.
func (a *Agent) notAttached(sender netip.Addr) error {
	tor := "its own ToR"
	for _, s := range a.cfg.Switches {
		if slices.ContainsFunc(s.Prefixes, func(p netip.Prefix) bool { return p.Contains(sender) }) {
			tor += ", which is switch " + s.Name
		}
	}
	return fmt.Errorf("%w: sender %v is in none of the prefixes of switch %s (%v); install the group at %s",
		bifurcation.ErrNoMergePoint, sender, a.name, a.cfg.Prefixes, tor)
}

// update changes a group's receivers. Those that leave are removed from merging first, so that they
// do not block the sender whatever else happens. For new ones merging is renewed, from psn on.
func (a *Agent) update(ctx context.Context, k groups.Key, receivers []bifurcation.Receiver, psn *uint32) error {
	g, s, err := a.table.EnterGroup(ctx, k)
	if err != nil {
		return err
	}
	defer a.table.Leave(s)
	if err := a.settledRoutes(ctx); err != nil { // until then merging is unknown
		return err
	}
	if a.table.Installed(k) != g {
		return fmt.Errorf("%w: %v", ErrNotFound, k)
	}
	next := g.Group
	next.Receivers = receivers
	if err := a.check(next); err != nil {
		return err
	}
	if planner.Equal(receivers, g.Receivers) {
		return nil
	}
	was := g.Receivers
	stay, leave, join := compare(was, receivers)
	if len(join) > 0 && psn == nil {
		return fmt.Errorf("%w: receiver %v is new, and the PSN that the sender will send next is not given", bifurcation.ErrInvalid, join[0].Addr)
	}
	a.resolveHosts(ctx, join)
	if len(leave) > 0 && len(stay) > 0 {
		if err := a.shrink(ctx, g, s, stay); err != nil {
			return err
		}
	}
	shrunk, grows := !planner.Equal(g.Receivers, was), !planner.Equal(g.Receivers, receivers)
	if grows {
		err = a.grow(ctx, g, s, receivers, psn)
	}
	switch {
	case grows && err == nil:
		a.tell(mcrdmav1.WatchResponse_TYPE_UPDATED, a.table.View(g))
	case shrunk:
		a.wg.Go(func() { // even if the caller has left
			if a.remakeOne(context.WithoutCancel(ctx), s) != nil {
				a.rerun.wake()
			}
		})
	}
	return err
}

// compare returns which receivers stay unchanged, which leave, and which are new.
func compare(was, next []bifurcation.Receiver) (stay, leave, join []bifurcation.Receiver) {
	for _, r := range was {
		if slices.ContainsFunc(next, func(n bifurcation.Receiver) bool { return planner.Same(r, n) }) {
			stay = append(stay, r)
		} else {
			leave = append(leave, r)
		}
	}
	for _, n := range next {
		if !slices.ContainsFunc(was, func(r bifurcation.Receiver) bool { return planner.Same(r, n) }) {
			join = append(join, n)
		}
	}
	return stay, leave, join
}

// shrink removes receivers: the switch no longer waits for them, and that is durable. The tree
// shrinks later, when packets in flight have drained; until then it is larger than necessary.
func (a *Agent) shrink(ctx context.Context, g *groups.Group, s *groups.Step, stay []bifurcation.Receiver) error {
	next, undo := a.table.Shrink(g, stay)
	merge := a.mergePut(g.Merging())
	err := a.driver.write(ctx, merge)
	if err == nil {
		err = a.table.Store(context.WithoutCancel(ctx), s, next)
	}
	if err != nil {
		undo()
		a.driver.post(merge)
		return err
	}
	a.table.Replace(g, next, true)
	return nil
}

// grow adds receivers to a group, or changes their order.
func (a *Agent) grow(ctx context.Context, g *groups.Group, s *groups.Step, receivers []bifurcation.Receiver, psn *uint32) error {
	next, err := a.table.Grow(g, receivers, psn)
	if err != nil {
		return err
	}
	was, merging := g.Merging(), next.Merging()
	if err = a.begin(ctx, merging); err == nil {
		err = a.apply(ctx, s, change{strict: true, spec: next.Spec(), record: func(ctx context.Context) error { return a.table.Store(ctx, s, next) },
			merging:   both(a.mergePut(merging), a.mergeDelete(was)),
			unmerging: both(a.mergePut(was), a.mergeDelete(merging))})
	}
	if err != nil {
		a.table.Free(merging)
		return err
	}
	a.table.Replace(g, next, false)
	return nil
}

// remove removes a group. If there is none, the error wraps ErrNotFound.
func (a *Agent) remove(ctx context.Context, k groups.Key, why mcrdmav1.WatchResponse_Type) error {
	g, s, err := a.table.EnterGroup(ctx, k)
	if err != nil {
		return err
	}
	defer a.table.Leave(s)
	if err := a.settledRoutes(ctx); err != nil {
		return err
	}
	last := a.table.View(g)
	if why == mcrdmav1.WatchResponse_TYPE_EXPIRED && time.Now().Before(last.Expires) {
		return nil // it was renewed
	}
	if err := a.drop(ctx, s, a.mergeDelete(g.Merging())); err != nil {
		a.log.Error("a group was removed from the switch, but not from the agent's state", "group", k, "error", err)
	}
	a.table.Remove(g)
	a.tell(why, last)
	return nil
}
