package p4rtserver

import (
	"cmp"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// memberCall reads a member's action.
func memberCall(p *profile, a *p4.Action) (pipeline.Call, error) {
	if a == nil {
		return pipeline.Call{}, invalid("%s: the member needs an action", p)
	}
	call, ta, err := readCall(p, p.actions, a)
	if err != nil {
		return call, err
	}
	if ta.scope == p4cfg.ActionRef_DEFAULT_ONLY {
		return call, fail(codes.PermissionDenied, "%s: %s can only be the default action", p, ta)
	}
	return call, nil
}

// profileMembers returns the members of a profile, for updates.
func profileMembers(p *profile) kept[*p4.ActionProfileMember, pipeline.Call] {
	return kept[*p4.ActionProfileMember, pipeline.Call]{
		kind:    "member",
		entries: map[uint32]*p4.ActionProfileMember{},
		read:    func(m *p4.ActionProfileMember) (pipeline.Call, error) { return memberCall(p, m.GetAction()) },
		keep: func(m *p4.ActionProfileMember) *p4.ActionProfileMember {
			call, _ := memberCall(p, m.GetAction()) // read has checked it
			return &p4.ActionProfileMember{ActionProfileId: p.id, MemberId: m.GetMemberId(), Action: writeCall(p.actions, call)}
		},
		insert: p.state.InsertMember, modify: p.state.ModifyMember, remove: p.state.DeleteMember,
		entity: func(m *p4.ActionProfileMember) *p4.Entity {
			return &p4.Entity{Entity: &p4.Entity_ActionProfileMember{ActionProfileMember: m}}
		},
	}
}

// member applies an update to a member of an action profile.
func (x *txn) member(kind p4.Update_Type, m *p4.ActionProfileMember) error {
	p, err := x.c.profiles.find(m.GetActionProfileId())
	switch {
	case err != nil:
		return err
	case m.GetMemberId() == 0:
		return invalid("%s: no member id is given", p)
	case kind == p4.Update_INSERT && p.state.Len() > len(p.members.entries):
		return invalid("%s: its tables have entries with action sets; members and groups cannot be used beside them", p)
	}
	return p.members.write(x, kind, m.GetMemberId(), m)
}

// A selection is a group's members, and the maximum sum of their weights; 0: no limit.
type selection struct {
	members []pipeline.Weighted
	limit   int
}

// profileGroups returns the groups of a selector, for updates.
func profileGroups(p *profile) kept[*p4.ActionProfileGroup, selection] {
	return kept[*p4.ActionProfileGroup, selection]{
		kind:    "group",
		entries: map[uint32]*p4.ActionProfileGroup{},
		read:    func(g *p4.ActionProfileGroup) (selection, error) { return readGroup(p, g) },
		keep:    keepGroup,
		insert:  func(id uint32, s selection) error { return p.state.InsertGroup(id, s.members, s.limit) },
		modify:  func(id uint32, s selection) error { return p.state.ModifyGroup(id, s.members, s.limit) },
		remove:  p.state.DeleteGroup,
		entity: func(g *p4.ActionProfileGroup) *p4.Entity {
			return &p4.Entity{Entity: &p4.Entity_ActionProfileGroup{ActionProfileGroup: g}}
		},
	}
}

// group applies an update to a group of a selector.
func (x *txn) group(kind p4.Update_Type, g *p4.ActionProfileGroup) error {
	p, err := x.c.profiles.find(g.GetActionProfileId())
	if err != nil {
		return err
	}
	id := g.GetGroupId()
	old := p.groups.entries[id]
	switch {
	case !p.selector:
		return invalid("%s has no selector, hence no groups", p)
	case id == 0:
		return invalid("%s: no group id is given", p)
	case kind == p4.Update_MODIFY && old != nil && old.GetMaxSize() != g.GetMaxSize():
		return invalid("%s: group %d: max_size is %d and cannot be changed to %d", p, id, old.GetMaxSize(), g.GetMaxSize())
	}
	return p.groups.write(x, kind, id, g)
}

// keepGroup returns a group as it is read back.
func keepGroup(g *p4.ActionProfileGroup) *p4.ActionProfileGroup {
	g = proto.CloneOf(g)
	for _, m := range g.GetMembers() {
		if k, ok := m.GetWatchKind().(*p4.ActionProfileGroup_Member_WatchPort); ok {
			k.WatchPort = canonical(k.WatchPort)
		}
	}
	return g
}

// keepSet returns an action set as it is read back.
func keepSet(s *p4.ActionProfileActionSet) *p4.ActionProfileActionSet {
	s = proto.CloneOf(s)
	for _, a := range s.GetActionProfileActions() {
		for _, p := range a.GetAction().GetParams() {
			p.Value = canonical(p.GetValue())
		}
		if k, ok := a.GetWatchKind().(*p4.ActionProfileAction_WatchPort); ok {
			k.WatchPort = canonical(k.WatchPort)
		}
	}
	return s
}

// readGroup checks a group and reads its members.
func readGroup(p *profile, g *p4.ActionProfileGroup) (s selection, err error) {
	id, size := g.GetGroupId(), g.GetMaxSize()
	switch {
	case size < 0:
		return s, invalid("%s: group %d: max_size is %d", p, id, size)
	case p.maxGroup > 0 && size > p.maxGroup:
		return s, invalid("%s: group %d: max_size is %d, more than the profile's max_group_size of %d", p, id, size, p.maxGroup)
	}
	limit := int(cmp.Or(size, p.maxGroup))
	if !p.byMembers {
		s.limit = limit
	} else if limit > 0 && len(g.GetMembers()) > limit {
		return s, fail(codes.ResourceExhausted, "%s: group %d: %d members, of %d at most", p, id, len(g.GetMembers()), limit)
	}
	s.members = make([]pipeline.Weighted, len(g.GetMembers()))
	for i, m := range g.GetMembers() {
		w := &s.members[i]
		w.Member, w.Weight = m.GetMemberId(), int(m.GetWeight())
		if m.GetMemberId() == 0 {
			return s, invalid("%s: group %d: a member without id", p, id)
		}
		port, err := watchPort(m.GetWatchPort(), m.GetWatch(), m.GetWatchKind() != nil) //nolint:staticcheck // deprecated, yet in use
		if err == nil {
			err = checkWeight(p, m.GetWeight())
		}
		if err != nil {
			return s, invalid("%s: group %d: member %d: %v", p, id, m.GetMemberId(), err)
		}
		w.WatchPort = port
	}
	return s, nil
}

// noPort is the watch port of a member that watches none.
const noPort = -1

// watchPort reads a watch port, which can be given in two ways.
func watchPort(b []byte, n int32, given bool) (int, error) {
	switch {
	case !given || len(b) == 0 && n == 0:
		return noPort, nil
	case len(b) > 0:
		port, err := readPort(b)
		return port, in("watch_port", err)
	}
	return int(n), in("watch", checkPort(int64(n)))
}

func checkWeight(p *profile, w int32) error {
	switch {
	case w < 1:
		return invalid("weight %d: it must be 1 or more", w)
	case p.byMembers && p.maxWeight > 0 && w > p.maxWeight:
		return invalid("weight %d: the profile allows %d at most", w, p.maxWeight)
	}
	return nil
}

// readSet reads a one-shot action set ("One Shot Action Selector Programming").
func (x *txn) readSet(t *table, s *p4.ActionProfileActionSet) ([]pipeline.Weighted, error) {
	p := t.profile
	switch {
	case !p.selector:
		return nil, invalid("%s: %s has no selector, so entries cannot have action sets", t, p)
	case len(p.members.entries)+len(p.groups.entries) > 0:
		return nil, invalid("%s: %s has members or groups; action sets cannot be used beside them", t, p)
	case s.GetActionSelectionMode() != p4.ActionProfileActionSet_DEFAULT_MODE_DETERMINED_BY_ACTION_SELECTOR &&
		s.GetActionSelectionMode() != p4.ActionProfileActionSet_HASH:
		return nil, fail(codes.Unimplemented, "%s: action_selection_mode %v: this switch selects by hash only", t, s.GetActionSelectionMode())
	}
	byMembers := p.byMembers
	switch s.GetSizeSemantics() {
	case p4.ActionProfileActionSet_DEFAULT_SIZE_DETERMINED_BY_ACTION_SELECTOR:
	case p4.ActionProfileActionSet_SUM_OF_MEMBERS:
		byMembers = true
	case p4.ActionProfileActionSet_SUM_OF_WEIGHTS:
		byMembers = false
	default:
		return nil, invalid("%s: there are no size_semantics %d", t, s.GetSizeSemantics())
	}
	out := make([]pipeline.Weighted, len(s.GetActionProfileActions()))
	sum := int64(0)
	for i, a := range s.GetActionProfileActions() {
		w := &out[i]
		call, err := memberCall(p, a.GetAction())
		if err == nil {
			err = checkWeight(p, a.GetWeight())
		}
		if err == nil {
			w.WatchPort, err = watchPort(a.GetWatchPort(), a.GetWatch(), a.GetWatchKind() != nil) //nolint:staticcheck // deprecated, yet in use
		}
		if err != nil {
			return nil, in(t.String()+": action set", err)
		}
		w.Call, w.Weight = call, int(a.GetWeight())
		sum += int64(a.GetWeight())
	}
	if byMembers {
		sum = int64(len(out))
	}
	if p.maxGroup > 0 && sum > int64(p.maxGroup) {
		return nil, invalid("%s: action set: its size is %d, more than the profile's max_group_size of %d", t, sum, p.maxGroup)
	}
	return out, nil
}
