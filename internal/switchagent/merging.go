package switchagent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// checkQPNs refuses merging whose MC_ID is the QPN of another group's sender, or vice versa,
// because the switch could not distinguish an answer from a packet that bypasses merging. The
// caller has Agent.mu.
func (a *Agent) checkQPNs(m *merging) error {
	other, clash := a.groups[groupKey{m.of.Source, m.senderQPN}]
	clash = clash && other.merging != nil && slices.ContainsFunc(other.merging.members, func(x bifurcation.MergeMember) bool { return x.Src == m.source })
	for _, x := range m.members {
		for _, o := range a.slots.bypasses[switchspec.Bypass{Src: x.Src, Dst: x.Dst, QPN: x.QPN}.Key()] {
			other, clash = o.of, true
		}
	}
	if !clash {
		return nil
	}
	return fmt.Errorf("%w: the MC_ID of one is the QPN of the other's sender, and both have a receiver in common: groups %v and %v; take MC_IDs that no device gives to a queue pair",
		ErrExists, m.of.key(), other.key())
}

// useSlot assigns a slot to merging. The caller has Agent.mu.
func (a *Agent) useSlot(m *merging) error {
	if err := a.checkQPNs(m); err != nil {
		return err
	}
	err := a.slots.take(m)
	if errors.Is(err, errUsedUp) {
		a.log.Warn("the switch is cleared", "reason", err)
		a.driver.clear(err.Error())
	}
	return err
}

func (a *Agent) freeSlot(m *merging) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.slots.give(m)
}

// settings returns the switch's settings. The caller has Agent.mu.
func (a *Agent) settings() switchspec.Settings {
	return switchspec.Settings{ICRC: icrcModes[a.cfg.ICRC], HashSeed: a.cfg.HashSeed, Owner: a.slots.Owner, Numbers: a.slots.Numbers}
}

// mergePut returns the edit that writes the current merging. The settings first record that the
// use's number is taken.
func (a *Agent) mergePut(m *merging) edit {
	return func(d *draft) error {
		a.mu.Lock()
		if m.use == 0 {
			a.mu.Unlock()
			return fmt.Errorf("%w: it has been given up", ErrNotFound)
		}
		m.leaving = false
		list, settings := m.entities(), a.settings()
		a.mu.Unlock()
		if err := d.keep(settings); err != nil {
			return err
		}
		return puts(list, nil)(d)
	}
}

// mergeDelete returns the edit that deletes it, except entries that another group or another slot
// has taken over.
func (a *Agent) mergeDelete(m *merging) edit {
	return func(d *draft) error {
		a.mu.Lock()
		m.leaving = true
		var gone []switchspec.Entity
		if !a.slots.shared(m) {
			gone = append(gone, m.bypass())
		}
		if m.use != 0 {
			gone = append(gone, m.group())
			for _, e := range m.entities() {
				member, ok := e.(switchspec.MergeMember)
				if !ok {
					continue
				}
				if now, there := d.want.Find(member.Key()); there && now.(switchspec.MergeMember).Slot == member.Slot {
					gone = append(gone, member)
				}
			}
		}
		a.mu.Unlock()
		for _, k := range keysOf(gone) {
			d.delete(k)
		}
		return nil
	}
}

// beginAnew gives merging a new use of a slot, in which nothing is passed on before all members
// have answered. The caller has Agent.mu.
func (a *Agent) beginAnew(m *merging, want *switchspec.State) error {
	a.slots.give(m)
	if err := a.useSlot(m); err != nil {
		return err
	}
	m.learn = true
	return want.Put(m.entities()...)
}

// baseline records the counters of merging's slot, which continue from one use to the next; those
// of a blank switch are 0.
func (a *Agent) baseline(ctx context.Context, s *p4rt.Session, m *merging, blank bool) error {
	var base []p4rt.MemberCounts
	if !blank {
		counts, err := s.ReadMemberCounters(ctx, m.slot())
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotReady, err)
		}
		if counts != [switchspec.MaxMembers]p4rt.MemberCounts{} {
			base = counts[:]
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	m.base = base
	return nil
}

// begin reads the baseline of merging that is not on the switch yet.
func (a *Agent) begin(ctx context.Context, m *merging) error {
	s, err := a.driver.connected(ctx)
	if err != nil {
		return err
	}
	return a.baseline(ctx, s, m, false)
}
