package switchagent

import (
	"context"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// found is called by the driver when it has connected to a switch and read it, before it writes the
// differences. blank: the switch's registers and counters are zero.
func (a *Agent) found(ctx context.Context, s *p4rt.Session, have, want *switchspec.State, blank bool) error {
	first := !a.start.adopted.reached()
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
		a.start.forwards = a.start.forwards || r.To == switchspec.ToNextHop || r.To == switchspec.ToECMP
	}
	a.start.adopted.reach()
	a.rerun.wake()
	return nil
}

// renewMerging gives groups whose merging the switch has lost a new use of a slot. Nothing is
// passed on until each member has answered, because their PSNs are unknown. The caller has
// Agent.mu.
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
			gone[g.Slot] = m // otherwise an edit that deletes it is queued
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

// judge returns the reason why a switch's registers must be cleared: they may hold answers that
// would count in this agent's epochs; "": they need not.
func (a *Agent) judge(have *switchspec.State) (why string, err error) {
	e, _ := have.Find(switchspec.Settings{}.Key())
	known := e.(switchspec.Settings)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch own := a.slots.ownership; {
	case known.Owner == 0 && (a.start.adopted.reached() || len(a.groups) == 0):
		return "its registers have no owner", nil
	case known.Owner == 0: // the state file may be an older copy, and the switch cannot show that
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

// giveUp gives up the groups that were installed here: they may have changed without this agent,
// and the answers of the members that it knows must not be passed on as those of all. The daemons
// learn that the groups are gone, and re-form them. The caller has Agent.mu.
func (a *Agent) giveUp(groups []*group, next ownership) error {
	groups = slices.DeleteFunc(groups, func(g *group) bool { return g.step == nil }) // it is being installed
	var edits []store.Edit
	for _, g := range groups {
		edits = append(edits, storeEdit(g.stepKey(), nil))
	}
	if err := a.slots.setOwnership(context.Background(), next, edits...); err != nil {
		return err
	}
	for _, g := range groups {
		a.slots.give(g.merging)
		g.void, g.expires, g.step.persisted, g.merging.use = true, time.Time{}, nil, 0
	}
	return nil
}

// adopt takes over the switch's entries when the agent first connects to it: known steps keep their
// numbers, and unknown entries will be deleted. It returns the merging that must be renewed. The
// caller has Agent.mu.
func (a *Agent) adopt(have, want *switchspec.State) ([]*merging, error) {
	base := &switchspec.State{}
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
			if e.ID == unicast.FloodGroup {
				if err := base.Put(e); err != nil {
					return nil, err
				}
			}
		case switchspec.Match, switchspec.MergeGroup, switchspec.MergeMember, switchspec.Bypass, switchspec.Settings:
		default:
			if err := base.Put(e); err != nil {
				return nil, err
			}
		}
	}
	for e := range base.All() {
		if err := want.Put(e); err != nil {
			return nil, err
		}
	}
	a.uni.adopt(base)
	for m := range switchspec.Of[switchspec.Match](have) {
		s := a.steps[stepKey{groupKey{m.Src, m.MCID}, m.Dst}]
		if s == nil || !s.needed() || m.FirstPRE <= unicast.FloodGroup || m.Group == 0 {
			continue
		}
		if !a.groupNumbers.free(m.Group, 1) || !a.preNumbers.free(m.FirstPRE, int(m.PREGroups)) {
			continue // another program has changed the switch: they are another group's too
		}
		list := byGroup[m.Group]
		for i := range m.PREGroups {
			if g, ok := pre[m.FirstPRE+i]; ok {
				list = append(list, g)
			}
		}
		list = append(list, m)
		s.installation = installation{rules: bifurcation.Rules{PREGroups: make([][]bifurcation.Replica, m.PREGroups)},
			group: m.Group, firstPRE: m.FirstPRE, entities: list}
		s.installation.rules = readRules(s.installation)
		a.groupNumbers.keep(m.Group, 1)
		a.preNumbers.keep(m.FirstPRE, int(m.PREGroups))
		a.uni.use(nextHops(s.installation.rules))
		if err := want.Put(list...); err != nil {
			return nil, err
		}
	}
	return a.adoptMerging(have, want)
}

// readRules is the inverse of entities.
func readRules(p installation) bifurcation.Rules {
	r := bifurcation.Rules{PREGroups: p.rules.PREGroups}
	var pre []switchspec.PREGroup
	for _, e := range p.entities {
		switch e := e.(type) {
		case switchspec.PREGroup:
			pre = append(pre, e)
		case switchspec.Replica:
			r.Rewrites = append(r.Rewrites, e.Rewrite)
		case switchspec.Region:
			r.Translations = append(r.Translations, e.Translation)
		}
	}
	for _, g := range pre {
		var list []bifurcation.Replica
		for _, x := range g.Replicas {
			list = append(list, bifurcation.Replica{RID: x.Instance, Port: uint32(x.Port)})
		}
		slices.SortFunc(list, func(a, b bifurcation.Replica) int { return int(a.RID) - int(b.RID) })
		r.PREGroups[g.ID-p.firstPRE] = list
	}
	slices.SortFunc(r.Translations, compareTranslations)
	return r
}

// adoptMerging keeps the merging of groups whose members on the switch are the desired ones. Others
// are renewed. It returns those whose baseline is unknown. The caller has Agent.mu.
func (a *Agent) adoptMerging(have, want *switchspec.State) (begun []*merging, err error) {
	there := map[groupKey][]switchspec.MergeMember{}
	for x := range switchspec.Of[switchspec.MergeMember](have) {
		k := groupKey{x.Dst, x.DestQP}
		there[k] = append(there[k], x)
	}
	var older []*group
	var lost []*merging
	for k, g := range a.groups {
		if !g.installed() {
			continue
		}
		m, recorded := g.merging, g.merging.use
		switch m.use = 0; {
		case m.outgrown(have, there[k]):
			older = append(older, g)
		case m.read(have, there[k]) && a.slots.used[m.slot()] == nil:
			a.slots.keep(m, m.use)
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
		a.log.Warn("the switch has groups with more members than the agent's state knows of; they are given up", "groups", len(older))
		if err := a.giveUp(older, a.slots.ownership); err != nil {
			return nil, err
		}
	}
	for _, m := range lost {
		if err := a.beginAnew(m, want); err != nil {
			return nil, err
		}
	}
	return append(begun, lost...), nil
}

// outgrown reports whether the merging on the switch has members that the state file lacks. Members
// are in the state file before they are on the switch, so the file is an older copy.
func (m *merging) outgrown(have *switchspec.State, there []switchspec.MergeMember) bool {
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
func (m *merging) read(have *switchspec.State, there []switchspec.MergeMember) bool {
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
	for i := range m.members {
		m.members[i].Index = places[m.members[i].Src]
	}
	for _, x := range others {
		m.members = append(m.members, bifurcation.MergeMember{Index: x.Index, Src: x.Src, Dst: x.Dst, QPN: x.DestQP})
	}
	m.use, m.psn, m.learn, m.current, m.cnpGap = useOf(found), found.InitialPSN, found.Learn, current, found.CNPGap
	return true
}
