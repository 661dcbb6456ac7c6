package groups

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

func (t *Table) add(g *Group) {
	t.groups[g.Key()] = g
	t.bySource[g.Source]++
}

// Claim adds a group to the table, unless there is one already: an identical one is renewed. Its
// installation is not complete before Confirm.
func (t *Table) Claim(in Info, s *Step, now time.Time) (g *Group, there bool, err error) {
	g = &Group{Info: in}
	limits := t.Config.Limits
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.groups[g.Key()]; old != nil {
		if old.void {
			return nil, false, fmt.Errorf("%w: what the switch had of group %v is being removed", ErrNotReady, g.Key())
		}
		if old.step == nil || !old.sameAs(&in) {
			return nil, false, fmt.Errorf("%w: group %v; remove it first, or update it", ErrExists, g.Key())
		}
		old.Lease, old.Expires = g.Lease, now.Add(g.Lease)
		return nil, true, nil
	}
	if len(s.holders) > 0 {
		return nil, false, fmt.Errorf("%w: packets of group %v are already handed to switch %s by others", bifurcation.ErrLoop, g.Key(), t.Config.Name)
	}
	if limits.Groups > 0 && len(t.groups) >= limits.Groups {
		return nil, false, fmt.Errorf("%w: this switch is configured to take %d groups", ErrLimit, limits.Groups)
	}
	if t.bySource[g.Source] >= limits.GroupsPerSource {
		return nil, false, fmt.Errorf("%w: this switch is configured to take %d groups of one sender", ErrLimit, limits.GroupsPerSource)
	}
	g.merging = newMerging(g)
	if err := t.useSlot(g.merging); err != nil {
		return nil, false, err
	}
	g.generation, g.Expires = t.Sequence.Add(1), now.Add(g.Lease)
	t.add(g)
	return g, false, nil
}

// Confirm records that a group's installation is complete.
func (t *Table) Confirm(g *Group, s *Step) View {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.group, g.step = g, s
	return g.view()
}

// Remove removes a group from the table, and frees its slot.
func (t *Table) Remove(g *Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots.give(g.merging)
	delete(t.groups, g.Key())
	if t.bySource[g.Source]--; t.bySource[g.Source] == 0 {
		delete(t.bySource, g.Source)
	}
}

func (t *Table) find(k Key) *Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.groups[k]
}

// Installed returns a group that is in use, or nil.
func (t *Table) Installed(k Key) *Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.groups[k]; g.installed() {
		return g
	}
	return nil
}

// Views returns the groups of some sources that are in use, in order of their keys.
func (t *Table) Views(sees func(source netip.Addr) bool) (list []View) {
	t.mu.Lock()
	for k, g := range t.groups {
		if g.installed() && sees(k.Source) {
			list = append(list, g.view())
		}
	}
	t.mu.Unlock()
	slices.SortFunc(list, func(x, y View) int { return x.Key().Compare(y.Key()) })
	return list
}

// Renew extends a lease; false: there is no such group. number is the daemon's number of the group,
// if not 0.
func (t *Table) Renew(k Key, number uint64, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.groups[k]
	if !g.installed() {
		return false
	}
	g.Expires, g.Number = now.Add(g.Lease), cmp.Or(number, g.Number)
	return true
}

// Shrink returns the group with those receivers that stay. Its merging, which is the group's, waits
// for no others, until undo.
func (t *Table) Shrink(g *Group, stay []bifurcation.Receiver) (next *Group, undo func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next = &Group{Info: g.Info, merging: g.merging, generation: t.Sequence.Add(1)}
	next.Receivers = stay
	was := g.merging.current
	g.merging.keepOnly(stay)
	return next, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		next.merging.current = was
	}
}

// Grow returns the group with other receivers, and merging of its own that begins at psn; nil: at
// what the members' answers say. If it does not replace the group, Free frees its slot.
func (t *Table) Grow(g *Group, receivers []bifurcation.Receiver, psn *uint32) (next *Group, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next = &Group{Info: g.Info, generation: t.Sequence.Add(1)}
	next.Receivers = receivers
	if psn != nil {
		next.InitialPSN = *psn
	}
	next.merging = newMerging(next)
	next.merging.learn = psn == nil
	return next, t.useSlot(next.merging)
}

// Replace makes a group what Shrink or Grow has returned. behind: other switches hold more.
func (t *Table) Replace(g, next *Group, behind bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g.merging != next.merging {
		t.slots.give(g.merging)
	}
	g.Group, g.generation, g.merging = next.Group, next.generation, next.merging
	g.merging.of = g
	g.step.state.Spec, g.step.state.Behind = g.Spec(), g.step.state.Behind || behind
}

// View returns what a group is now.
func (t *Table) View(g *Group) View {
	t.mu.Lock()
	defer t.mu.Unlock()
	return g.view()
}
