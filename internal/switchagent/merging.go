package switchagent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// merging is how a group's answers become one receiver's. All under Agent.mu.
type merging struct {
	of        *group
	use       uint64 // the number of its use of a slot; 0: it has none
	leaving   bool   // an edit takes it off the switch
	psn       uint32
	learn     bool
	members   []bifurcation.MergeMember // those that left too: their late answers are to be dropped
	current   uint16                    // bits of members
	source    netip.Addr
	senderQPN uint32
	cnpGap    uint32              // µs
	base      []p4rt.MemberCounts // what the slot had counted before this use; nil: nothing
}

// newMerging makes the merging of a group that begins at its PSN. It has no slot yet.
func newMerging(g *group) *merging {
	m := bifurcation.MergeOf(g.Group)
	return &merging{of: g, psn: m.InitialPSN, members: m.Members, current: m.Current, source: m.Source, senderQPN: m.SenderQPN,
		cnpGap: uint32(g.cnpGap.Microseconds())} //nolint:gosec // checked at the border
}

func (m *merging) slot() uint16 { return slotOf(m.use) }

func (m *merging) group() switchspec.MergeGroup {
	return switchspec.MergeGroup{Slot: m.slot(), Members: m.current, Epoch: epochOf(m.use), InitialPSN: m.psn, Learn: m.learn,
		Source: m.source, SenderQPN: m.senderQPN, CNPGap: m.cnpGap}
}

func (m *merging) bypass() switchspec.Bypass {
	return switchspec.Bypass{Src: m.source, Dst: m.of.Source, QPN: m.senderQPN}
}

func (m *merging) entities() []switchspec.Entity {
	out := make([]switchspec.Entity, 0, len(m.members)+2)
	out = append(out, m.bypass(), m.group())
	for _, x := range m.members {
		out = append(out, switchspec.MergeMember{Src: x.Src, Dst: x.Dst, DestQP: x.QPN, Slot: m.slot(), Index: x.Index})
	}
	return out
}

// without removes receivers from those whose answers are waited for.
func (m *merging) without(addrs []netip.Addr) {
	for _, x := range m.members {
		if slices.Contains(addrs, x.Src) {
			m.current &^= 1 << x.Index
		}
	}
}

// checkQPNs refuses merging whose MC_ID is the QPN of another group's sender, or vice
// versa, where the switch could not tell an answer from a packet that bypasses merging.
// The caller has Agent.mu.
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

// useSlot gives merging a slot. The caller has Agent.mu.
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

// settings are those of the switch. The caller has Agent.mu.
func (a *Agent) settings() switchspec.Settings {
	return switchspec.Settings{ICRC: icrcModes[a.cfg.ICRC], HashSeed: a.cfg.HashSeed, Owner: a.slots.Owner, Numbers: a.slots.Numbers}
}

// mergePut is the edit that puts merging on the switch as it is then. The switch first
// learns that the use's number is taken.
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

// mergeDelete is the edit that deletes it, except what another group or another slot
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

// found is called by the driver with each switch that it has found and read, before
// the switch gets what it lacks. blank says that its registers and counters are zero.
func (a *Agent) found(ctx context.Context, s *p4rt.Session, have, want *switchspec.State, blank bool) error {
	first := !closed(a.adopted)
	a.mu.Lock()
	var begun []*merging
	var err error
	if first {
		begun, err = a.adopt(have, want)
	} else {
		begun, err = a.renewMerging(have, want)
	}
	if err == nil {
		err = want.Put(a.settings())
	}
	a.mu.Unlock()
	for _, m := range begun {
		if err == nil {
			err = a.baseline(ctx, s, m, blank)
		}
	}
	if err != nil || !first {
		return err
	}
	for r := range switchspec.Of[switchspec.Route](have) {
		a.forwards = a.forwards || r.To == switchspec.ToNextHop || r.To == switchspec.ToECMP
	}
	close(a.adopted)
	a.rerun.wake()
	return nil
}

// renewMerging gives groups whose merging the switch has lost another use of a slot.
// Nothing is passed on until each member has answered, as their PSNs are not known.
// The caller has Agent.mu.
func (a *Agent) renewMerging(have, want *switchspec.State) (begun []*merging, err error) {
	var lost []switchspec.MergeGroup
	for g := range switchspec.Of[switchspec.MergeGroup](want) {
		if old, ok := have.Find(g.Key()); !ok || old.(switchspec.MergeGroup).Epoch != g.Epoch {
			lost = append(lost, g)
		}
	}
	gone := map[uint16]*merging{}
	for _, g := range lost {
		gone[g.Slot] = nil
		if m := a.slots.used[g.Slot]; m != nil && m.use == useOf(g) {
			gone[g.Slot] = m // else an edit that deletes it is queued
		}
		want.Delete(g.Key())
	}
	var members []switchspec.Key
	for x := range switchspec.Of[switchspec.MergeMember](want) {
		if _, ok := gone[x.Slot]; ok {
			members = append(members, x.Key())
		}
	}
	for _, k := range members {
		want.Delete(k)
	}
	for _, g := range lost {
		m := gone[g.Slot]
		if m == nil {
			continue
		}
		if err := a.beginAnew(m, want); err != nil {
			return nil, err
		}
		begun = append(begun, m)
	}
	return begun, nil
}

// beginAnew gives merging another use of a slot, in which nothing is passed on before
// all members have answered. The caller has Agent.mu.
func (a *Agent) beginAnew(m *merging, want *switchspec.State) error {
	a.slots.give(m)
	if err := a.useSlot(m); err != nil {
		return err
	}
	m.learn = true
	return want.Put(m.entities()...)
}

// baseline records the counters of merging's slot, as they count on from one use to
// the next; those of a blank switch are 0.
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

// begin takes the baseline of merging that is not on the switch yet.
func (a *Agent) begin(ctx context.Context, m *merging) error {
	s, err := a.driver.connected(ctx)
	if err != nil {
		return err
	}
	return a.baseline(ctx, s, m, false)
}

// judge says why a switch's registers have to be cleared, as they may hold answers that
// this agent's epochs would count; "": they need not.
func (a *Agent) judge(have *switchspec.State) (why string, err error) {
	e, _ := have.Find(switchspec.Settings{}.Key())
	known := e.(switchspec.Settings)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch own := a.slots.ownership; {
	case known.Owner == 0 && (closed(a.adopted) || len(a.groups) == 0):
		return "its registers have no owner", nil
	case known.Owner == 0: // the state may be an older copy, and the switch cannot tell
		why = "it has started anew, as the agent has"
		a.log.Warn("the groups in the agent's state are given up, and will be formed anew", "reason", why)
	case known.Owner != own.Owner:
		why = "another agent, or one with another state, has had the switch"
	case known.Numbers > own.Numbers:
		why = "the agent's state is older than what the switch knows: a copy was put back"
	default:
		return "", nil
	}
	return why, a.giveUp(slices.Collect(maps.Values(a.groups)), ownership{newOwner(), a.slots.Numbers})
}

// giveUp makes groups void that were installed here: they may have been changed since
// without this agent, and an answer of the members that it knows must not pass for one
// of all. The daemons learn that they are gone, and form them anew. The caller has
// Agent.mu.
func (a *Agent) giveUp(groups []*group, next ownership) error {
	groups = slices.DeleteFunc(groups, func(g *group) bool { return g.step == nil }) // it is being installed
	var edits []store.Edit
	for _, g := range groups {
		edits = append(edits, storeEdit(g.stepKey(), nil))
	}
	if err := a.slots.become(context.Background(), next, edits...); err != nil {
		return err
	}
	for _, g := range groups {
		a.slots.give(g.merging)
		g.void, g.expires, g.step.persisted, g.merging.use = true, time.Time{}, nil, 0
	}
	return nil
}
