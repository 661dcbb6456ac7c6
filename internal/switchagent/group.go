package switchagent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// install installs a group in the whole tree, or changes nothing.
func (a *Agent) install(ctx context.Context, g *group) error {
	if g.Address == (netip.Addr{}) && len(g.Receivers) > 0 {
		g.Address = g.Receivers[0].Addr
	}
	if err := g.Validate(); err != nil {
		return err
	}
	if err := a.limitReceivers(g.Receivers); err != nil {
		return err
	}
	if _, err := a.driver.there(ctx); err != nil {
		return err
	}
	if err := a.settledRoutes(ctx); err != nil {
		return err
	}
	if !a.attached(g.Source) {
		return a.notAttached(g.Source)
	}
	if err := a.resolveHosts(ctx, g.Receivers); err != nil {
		return err
	}
	s, err := a.enter(ctx, g.stepKey())
	if err != nil {
		return err
	}
	defer a.leave(s)
	if there, err := a.claim(g, s); there || err != nil {
		return err
	}
	c := change{strict: true, spec: g.spec(), unreached: true, begin: g.merging, merging: a.mergePut(g.merging), unmerging: a.mergeDelete(g.merging),
		record: a.groupRecord(g)}
	if err := a.apply(ctx, s, c); err != nil {
		a.unclaim(g)
		return err
	}
	a.mu.Lock()
	s.group, g.step = g, s
	a.mu.Unlock()
	a.tell(mcrdmav1.WatchResponse_TYPE_INSTALLED, g.Source, a.describe(g))
	return nil
}

func (a *Agent) limitReceivers(list []bifurcation.Receiver) error {
	if max := a.cfg.Limits.Receivers; max > 0 && len(list) > max {
		return fmt.Errorf("%w: %d, and this switch is configured to take %d", bifurcation.ErrTooManyReceivers, len(list), max)
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

// claim adds a group to the table of groups, unless there is one already: an identical
// one is renewed.
func (a *Agent) claim(g *group, s *step) (there bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old := a.groups[g.key()]; old != nil {
		if old.void {
			return true, fmt.Errorf("%w: what the switch had of group %v is being removed", ErrNotReady, g.key())
		}
		if old.step == nil || !old.sameAs(g) {
			return true, fmt.Errorf("%w: group %v; remove it first, or update it", ErrExists, g.key())
		}
		old.lease, old.expires = g.lease, time.Now().Add(g.lease)
		return true, nil
	}
	if len(s.holders) > 0 {
		return true, fmt.Errorf("%w: packets of group %v are already handed to switch %s by others", bifurcation.ErrLoop, g.key(), a.name)
	}
	if max := a.cfg.Limits.Groups; max > 0 && len(a.groups) >= max {
		return true, fmt.Errorf("%w: this switch is configured to take %d groups", ErrLimit, max)
	}
	own := 0
	for k := range a.groups {
		if k.source == g.Source {
			own++
		}
	}
	if max := a.cfg.Limits.GroupsPerSource; own >= max {
		return true, fmt.Errorf("%w: this switch is configured to take %d groups of one sender", ErrLimit, max)
	}
	g.merging = newMerging(g)
	if err := a.useSlot(g.merging); err != nil {
		return true, err
	}
	g.generation = a.peers.sequence.Add(1)
	g.expires = time.Now().Add(g.lease)
	a.groups[g.key()] = g
	return false, nil
}

func (a *Agent) unclaim(g *group) {
	a.freeSlot(g.merging)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.groups, g.key())
}

// enterGroup gives the caller a group, and the turn of its step.
func (a *Agent) enterGroup(ctx context.Context, k groupKey) (*group, *step, error) {
	for {
		g := a.group(k)
		if g == nil {
			return nil, nil, fmt.Errorf("%w: %v", ErrNotFound, k)
		}
		s, err := a.enter(ctx, g.stepKey())
		if err != nil {
			return nil, nil, err
		}
		if s.group == g {
			return g, s, nil
		}
		a.leave(s)
		if a.group(k) == g {
			return nil, nil, fmt.Errorf("%w: %v is only being installed", ErrNotFound, k)
		}
	}
}

func (a *Agent) group(k groupKey) *group {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.groups[k]
}

// installed returns a group whose installation is complete, or nil.
func (a *Agent) installed(k groupKey) *group {
	a.mu.Lock()
	defer a.mu.Unlock()
	if g := a.groups[k]; g.installed() {
		return g
	}
	return nil
}

// update changes a group's receivers. Those that leave are removed from merging first, so that they
// do not block the sender whatever else happens. For new ones merging is renewed, from psn on.
func (a *Agent) update(ctx context.Context, k groupKey, receivers []bifurcation.Receiver, psn *uint32) error {
	g, s, err := a.enterGroup(ctx, k)
	if err != nil {
		return err
	}
	defer a.leave(s)
	if err := a.settledRoutes(ctx); err != nil { // until then merging is unknown
		return err
	}
	if a.installed(k) != g {
		return fmt.Errorf("%w: %v", ErrNotFound, k)
	}
	next := *g
	next.Receivers = receivers
	if err := next.Validate(); err != nil {
		return err
	}
	if err := a.limitReceivers(receivers); err != nil {
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
	if err := a.resolveHosts(ctx, join); err != nil {
		return err
	}
	if len(leave) > 0 && len(stay) > 0 {
		if err := a.shrink(ctx, g, s, stay, leave); err != nil {
			return err
		}
	}
	shrunk, grows := !planner.Equal(g.Receivers, was), !planner.Equal(g.Receivers, receivers)
	if grows {
		err = a.grow(ctx, g, s, receivers, psn)
	}
	switch {
	case grows && err == nil:
		a.tell(mcrdmav1.WatchResponse_TYPE_UPDATED, g.Source, a.describe(g))
	case shrunk:
		a.background(func(ctx context.Context) {
			if a.remakeOne(ctx, s) != nil {
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
func (a *Agent) shrink(ctx context.Context, g *group, s *step, stay, leave []bifurcation.Receiver) error {
	var gone []netip.Addr
	for _, r := range leave {
		gone = append(gone, r.Addr)
	}
	a.mu.Lock()
	was, wasReceivers, wasGeneration := g.merging.current, g.Receivers, g.generation
	g.merging.without(gone)
	a.mu.Unlock()
	merge := a.mergePut(g.merging)
	err := a.driver.write(ctx, merge)
	a.mu.Lock()
	g.Receivers, g.generation = stay, a.peers.sequence.Add(1)
	a.mu.Unlock()
	if err == nil {
		err = a.persist(context.WithoutCancel(ctx), s, a.groupRecord(g)())
	}
	a.mu.Lock()
	if err != nil {
		g.merging.current, g.Receivers, g.generation = was, wasReceivers, wasGeneration
		a.mu.Unlock()
		a.driver.post(merge)
		return err
	}
	s.spec, s.behind = g.spec(), true
	a.mu.Unlock()
	return nil
}

// grow adds receivers to a group, or changes their order.
func (a *Agent) grow(ctx context.Context, g *group, s *step, receivers []bifurcation.Receiver, psn *uint32) error {
	next := *g
	next.Receivers = receivers
	if psn != nil {
		next.InitialPSN = *psn
	}
	next.merging = newMerging(&next)
	was := g.merging
	a.mu.Lock()
	err := a.useSlot(next.merging)
	next.generation = a.peers.sequence.Add(1)
	a.mu.Unlock()
	if err != nil {
		return err
	}
	if err := a.begin(ctx, next.merging); err != nil {
		a.freeSlot(next.merging)
		return err
	}
	next.merging.learn = psn == nil
	c := change{strict: true, spec: next.spec(), record: a.groupRecord(&next),
		merging:   both(a.mergePut(next.merging), a.mergeDelete(was)),
		unmerging: both(a.mergePut(was), a.mergeDelete(next.merging))}
	if err := a.apply(ctx, s, c); err != nil {
		a.freeSlot(next.merging)
		return err
	}
	a.freeSlot(was)
	a.mu.Lock()
	g.Group, g.generation, g.merging = next.Group, next.generation, next.merging
	g.merging.of = g
	a.mu.Unlock()
	return nil
}

// remove removes a group. If there is none, the error wraps ErrNotFound.
func (a *Agent) remove(ctx context.Context, k groupKey, why mcrdmav1.WatchResponse_Type) error {
	g, s, err := a.enterGroup(ctx, k)
	if err != nil {
		return err
	}
	defer a.leave(s)
	if err := a.settledRoutes(ctx); err != nil {
		return err
	}
	a.mu.Lock()
	renewed := why == mcrdmav1.WatchResponse_TYPE_EXPIRED && time.Now().Before(g.expires)
	a.mu.Unlock()
	if renewed {
		return nil
	}
	status := a.describe(g)
	if err := a.drop(ctx, s, a.mergeDelete(g.merging)); err != nil {
		a.log.Error("a group was removed from the switch, but not from the agent's state", "group", k, "error", err)
	}
	a.unclaim(g)
	a.tell(why, g.Source, status)
	return nil
}

// renew extends a lease; false: there is no such group. number is the daemon's number of the group,
// if not 0.
func (a *Agent) renew(k groupKey, number uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.groups[k]
	if !g.installed() {
		return false
	}
	g.expires, g.number = time.Now().Add(g.lease), cmp.Or(number, g.number)
	return true
}
