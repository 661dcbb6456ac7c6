package p4rtserver

import (
	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

func (x *txn) findProfile(id uint32) (*profile, error) {
	p := x.c.profiles[id]
	if p == nil {
		return nil, x.c.noSuch("action profile", id)
	}
	return p, nil
}

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

// member applies an update to a member of an action profile.
func (x *txn) member(kind p4.Update_Type, m *p4.ActionProfileMember) error {
	p, err := x.findProfile(m.GetActionProfileId())
	if err != nil {
		return err
	}
	id := m.GetMemberId()
	if id == 0 {
		return invalid("%s: no member id is given", p)
	}
	if kind == p4.Update_DELETE {
		old := p.state.Member(id)
		if err := p.state.DeleteMember(id); err != nil {
			return err
		}
		call := old.Call
		x.c.members[p]--
		x.done(func() error {
			x.c.members[p]++
			return p.state.InsertMember(id, call)
		})
		return nil
	}
	call, err := memberCall(p, m.GetAction())
	if err != nil {
		return err
	}
	if kind == p4.Update_MODIFY {
		var before pipeline.Call
		if old := p.state.Member(id); old != nil {
			before = old.Call
		}
		if err := p.state.ModifyMember(id, call); err != nil {
			return err
		}
		x.done(func() error { return p.state.ModifyMember(id, before) })
		return nil
	}
	if p.state.Len() > x.c.members[p] {
		return invalid("%s: its tables have entries with action sets; members and groups cannot be used beside them", p)
	}
	if err := p.state.InsertMember(id, call); err != nil {
		return err
	}
	x.c.members[p]++
	x.done(func() error {
		x.c.members[p]--
		return p.state.DeleteMember(id)
	})
	return nil
}

// group applies an update to a group of a selector.
func (x *txn) group(kind p4.Update_Type, g *p4.ActionProfileGroup) error {
	p, err := x.findProfile(g.GetActionProfileId())
	if err != nil {
		return err
	}
	id := g.GetGroupId()
	switch {
	case !p.selector:
		return invalid("%s has no selector, hence no groups", p)
	case id == 0:
		return invalid("%s: no group id is given", p)
	}
	known := x.c.groups[p]
	if known == nil {
		known = map[uint32]*p4.ActionProfileGroup{}
		x.c.groups[p] = known
	}
	old := known[id]
	if kind == p4.Update_DELETE {
		if err := p.state.DeleteGroup(id); err != nil {
			return err
		}
		delete(known, id)
		x.done(func() error {
			known[id] = old
			return insertGroup(p, old)
		})
		return nil
	}
	members, err := readGroup(p, g)
	if err != nil {
		return err
	}
	if kind == p4.Update_INSERT {
		if err := p.state.InsertGroup(id, members, groupLimit(p, g)); err != nil {
			return err
		}
		known[id] = keepGroup(g)
		x.done(func() error {
			delete(known, id)
			return p.state.DeleteGroup(id)
		})
		return nil
	}
	if old != nil && old.GetMaxSize() != g.GetMaxSize() {
		return invalid("%s: group %d: max_size is %d and cannot be changed to %d", p, id, old.GetMaxSize(), g.GetMaxSize())
	}
	if err := p.state.ModifyGroup(id, members, groupLimit(p, g)); err != nil {
		return err
	}
	known[id] = keepGroup(g)
	x.done(func() error {
		known[id] = old
		before, err := readGroup(p, old)
		if err != nil {
			return err
		}
		return p.state.ModifyGroup(id, before, groupLimit(p, old))
	})
	return nil
}

// keepGroup is a group as it is to be read back.
func keepGroup(g *p4.ActionProfileGroup) *p4.ActionProfileGroup {
	g = proto.CloneOf(g)
	for _, m := range g.GetMembers() {
		if k, ok := m.GetWatchKind().(*p4.ActionProfileGroup_Member_WatchPort); ok {
			k.WatchPort = canonical(k.WatchPort)
		}
	}
	return g
}

// keepSet is an action set as it is to be read back.
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

func insertGroup(p *profile, g *p4.ActionProfileGroup) error {
	members, err := readGroup(p, g)
	if err != nil {
		return err
	}
	return p.state.InsertGroup(g.GetGroupId(), members, groupLimit(p, g))
}

// groupLimit is what the weights of a group may add up to, if it is limited so.
func groupLimit(p *profile, g *p4.ActionProfileGroup) int {
	if p.byMembers {
		return 0
	}
	if n := g.GetMaxSize(); n > 0 {
		return int(n)
	}
	return int(p.maxGroup)
}

// readGroup checks a group and reads its members.
func readGroup(p *profile, g *p4.ActionProfileGroup) ([]pipeline.Weighted, error) {
	id, size := g.GetGroupId(), g.GetMaxSize()
	switch {
	case size < 0:
		return nil, invalid("%s: group %d: max_size is %d", p, id, size)
	case p.maxGroup > 0 && size > p.maxGroup:
		return nil, invalid("%s: group %d: max_size is %d, more than the profile's max_group_size of %d", p, id, size, p.maxGroup)
	}
	limit := size
	if limit == 0 {
		limit = p.maxGroup
	}
	if p.byMembers && limit > 0 && len(g.GetMembers()) > int(limit) {
		return nil, fail(codes.ResourceExhausted, "%s: group %d: %d members, of %d at most", p, id, len(g.GetMembers()), limit)
	}
	out := make([]pipeline.Weighted, len(g.GetMembers()))
	for i, m := range g.GetMembers() {
		w := &out[i]
		w.Member, w.Weight = m.GetMemberId(), int(m.GetWeight())
		if m.GetMemberId() == 0 {
			return nil, invalid("%s: group %d: a member without id", p, id)
		}
		port, err := watchPort(m.GetWatchPort(), m.GetWatch(), m.GetWatchKind() != nil) //nolint:staticcheck // deprecated, yet in use
		if err == nil {
			err = checkWeight(p, m.GetWeight())
		}
		if err != nil {
			return nil, invalid("%s: group %d: member %d: %v", p, id, m.GetMemberId(), err)
		}
		w.WatchPort = port
	}
	return out, nil
}

// noPort is the watch port of a member that does not depend on a port.
const noPort = -1

// watchPort reads one of the two ways in which a port to watch can be given.
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
	case x.c.members[p] > 0 || len(x.c.groups[p]) > 0:
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
			return nil, &failure{codeOf(err), t.String() + ": action set: " + textOf(err)}
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
