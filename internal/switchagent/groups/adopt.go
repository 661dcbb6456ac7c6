package groups

import (
	"context"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// RenewMerging gives groups whose merging the switch has lost a new use of a slot. Nothing is
// passed on until each member has answered, because their PSNs are unknown.
func (t *Table) RenewMerging(have, want *switchspec.State) (begun []*Merging, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	gone := map[uint16]bool{} // slots
	for g := range switchspec.Of[switchspec.MergeGroup](want) {
		if old, ok := have.Find(g.Key()); ok && old.(switchspec.MergeGroup).Epoch == g.Epoch {
			continue
		}
		gone[g.Slot] = true
		if m := t.slots.used[g.Slot]; m != nil && m.use == useOf(g) { // otherwise an edit that deletes it is queued
			begun = append(begun, m)
		}
		want.Delete(g.Key())
	}
	for x := range switchspec.Of[switchspec.MergeMember](want) {
		if gone[x.Slot] {
			want.Delete(x.Key())
		}
	}
	for _, m := range begun {
		if err := t.beginAnew(m, want); err != nil {
			return nil, err
		}
	}
	return begun, want.Put(t.settings())
}

// Judge returns the reason why a switch with these settings must be cleared: its registers may hold
// answers that would count in this agent's epochs; "": it need not. adopted: the agent has had the
// switch since its start. If the groups may have changed without this agent, they are given up.
func (t *Table) Judge(known switchspec.Settings, adopted bool) (why string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch own := t.slots.ownership; {
	case known.Owner == 0 && (adopted || len(t.groups) == 0):
		return "its registers have no owner", nil
	case known.Owner == 0: // the state file may be an older copy, and the switch cannot show that
		why = "it has started anew, as the agent has"
		t.Log.Warn("the groups in the agent's state are given up, and will be formed anew", "reason", why)
	case known.Owner != own.Owner:
		why = "another agent, or one with another state, has had the switch"
	case known.Numbers > own.Numbers:
		why = "the agent's state is older than what the switch knows: a copy was put back"
	default:
		return "", nil
	}
	return why, t.giveUp(slices.Collect(maps.Values(t.groups)), ownership{Owner: newOwner(), Numbers: t.slots.Numbers})
}

// giveUp gives up the groups that were installed here: they may have changed without this agent,
// and the answers of the members that it knows must not be passed on as those of all. The daemons
// learn that the groups are gone, and re-form them.
func (t *Table) giveUp(groups []*Group, next ownership) error {
	groups = slices.DeleteFunc(groups, func(g *Group) bool { return g.step == nil }) // it is being installed
	var edits []store.Edit
	for _, g := range groups {
		edits = append(edits, storeEdit(g.StepKey(), nil))
	}
	if err := t.slots.setOwnership(context.Background(), next, edits...); err != nil {
		return err
	}
	for _, g := range groups {
		t.slots.give(g.merging)
		g.void, g.Expires, g.step.state.Record, g.merging.use = true, time.Time{}, nil, 0
	}
	return nil
}

// Adopt takes over the switch's entries when the agent first connects to it: known steps keep their
// numbers, and unknown entries are not wanted. It returns the merging whose baseline is unknown, and
// the next hops that the steps use.
func (t *Table) Adopt(have, want *switchspec.State) (begun []*Merging, hops []uint16, err error) {
	byGroup := map[uint16][]switchspec.Entity{}
	pre := map[uint16]switchspec.PREGroup{}
	for e := range have.All() {
		switch e := e.(type) {
		case switchspec.Replica:
			byGroup[e.Group] = append(byGroup[e.Group], e)
		case switchspec.Region:
			byGroup[e.Group] = append(byGroup[e.Group], e)
		case switchspec.PREGroup:
			pre[e.ID] = e
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for m := range switchspec.Of[switchspec.Match](have) {
		s := t.steps[StepKey{Key{m.Src, m.MCID}, m.Dst}]
		if s == nil || !s.Needed() || m.FirstPRE <= unicast.FloodGroup || m.Group == 0 {
			continue
		}
		if !t.groupNumbers.free(m.Group, 1) || !t.preNumbers.free(m.FirstPRE, int(m.PREGroups)) {
			continue // another program has changed the switch: they are another group's too
		}
		t.groupNumbers.keep(m.Group, 1)
		t.preNumbers.keep(m.FirstPRE, int(m.PREGroups))
		list := byGroup[m.Group]
		for i := range m.PREGroups {
			if g, ok := pre[m.FirstPRE+i]; ok {
				list = append(list, g)
			}
		}
		list = append(list, m)
		p := Installation{Rules: bifurcation.Rules{PREGroups: make([][]bifurcation.Replica, m.PREGroups)},
			Group: m.Group, FirstPRE: m.FirstPRE, Entities: list}
		p.Rules = readRules(p)
		s.state.Installation = p
		hops = append(hops, p.Hops()...)
		if err := want.Put(list...); err != nil {
			return nil, hops, err
		}
	}
	if begun, err = t.adoptMerging(have, want); err == nil {
		err = want.Put(t.settings())
	}
	return begun, hops, err
}

// adoptMerging keeps the merging of groups whose members on the switch are the desired ones. Others
// are renewed. It returns those whose baseline is unknown.
func (t *Table) adoptMerging(have, want *switchspec.State) (begun []*Merging, err error) {
	there := map[Key][]switchspec.MergeMember{}
	for x := range switchspec.Of[switchspec.MergeMember](have) {
		k := Key{x.Dst, x.DestQP}
		there[k] = append(there[k], x)
	}
	var older []*Group
	var lost []*Merging
	for k, g := range t.groups {
		if !g.installed() {
			continue
		}
		m, recorded := g.merging, g.merging.use
		switch m.use = 0; {
		case m.outgrown(have, there[k]):
			older = append(older, g)
		case m.read(have, there[k]) && t.slots.used[m.Slot()] == nil:
			t.slots.keep(m, m.use)
			if m.use != recorded {
				begun = append(begun, m)
			}
			if err := want.Put(m.entities()...); err != nil {
				return nil, err
			}
		default:
			lost = append(lost, m)
		}
	}
	if len(older) > 0 {
		t.Log.Warn("the switch has groups with more members than the agent's state knows of; they are given up", "groups", len(older))
		if err := t.giveUp(older, t.slots.ownership); err != nil {
			return nil, err
		}
	}
	for _, m := range lost {
		if err := t.beginAnew(m, want); err != nil {
			return nil, err
		}
	}
	return append(begun, lost...), nil
}

// outgrown reports whether the merging on the switch has members that the state file lacks. Members
// are in the state file before they are on the switch, so the file is an older copy.
func (m *Merging) outgrown(have *switchspec.State, there []switchspec.MergeMember) bool {
	places := map[[2]uint16]bool{} // slot and index
	known := func(x switchspec.MergeMember) bool {
		return slices.ContainsFunc(m.members, func(y bifurcation.MergeMember) bool { return y.Src == x.Src })
	}
	for _, x := range there {
		if known(x) {
			places[[2]uint16{x.Slot, uint16(x.Index)}] = true
		}
	}
	return slices.ContainsFunc(there, func(x switchspec.MergeMember) bool {
		e, ok := have.Find(switchspec.MergeGroup{Slot: x.Slot}.Key())
		return ok && !known(x) && !places[[2]uint16{x.Slot, uint16(x.Index)}] && e.(switchspec.MergeGroup).Members&(1<<x.Index) != 0
	})
}

// read finds a group's merging on the switch by its members, and adopts its slot and their indices.
func (m *Merging) read(have *switchspec.State, there []switchspec.MergeMember) bool {
	var found switchspec.MergeGroup
	var others []switchspec.MergeMember // that left
	places := map[netip.Addr]uint8{}
	current := uint16(0)
	for _, x := range there {
		if !slices.ContainsFunc(m.members, func(y bifurcation.MergeMember) bool { return y.Src == x.Src }) {
			others = append(others, x)
			continue
		}
		e, ok := have.Find(switchspec.MergeGroup{Slot: x.Slot}.Key())
		if !ok || found.Epoch != 0 && e != switchspec.Entity(found) {
			return false
		}
		found = e.(switchspec.MergeGroup)
		places[x.Src] = x.Index
		current |= 1 << x.Index
	}
	if found.Epoch == 0 || found.Source != m.source || found.SenderQPN != m.senderQPN || current&^found.Members != 0 ||
		bits.OnesCount16(current) != len(m.members) {
		return false
	}
	others = slices.DeleteFunc(others, func(x switchspec.MergeMember) bool { return x.Slot != found.Slot })
	if slices.ContainsFunc(others, func(x switchspec.MergeMember) bool { return current&(1<<x.Index) != 0 }) {
		return false
	}
	m.members = slices.Clone(m.members) // a View may have them
	for i := range m.members {
		m.members[i].Index = places[m.members[i].Src]
	}
	for _, x := range others {
		m.members = append(m.members, bifurcation.MergeMember{Index: x.Index, Src: x.Src, Dst: x.Dst, QPN: x.DestQP})
	}
	m.use, m.psn, m.learn, m.current, m.cnpGap = useOf(found), found.InitialPSN, found.Learn, current, found.CNPGap
	return true
}
