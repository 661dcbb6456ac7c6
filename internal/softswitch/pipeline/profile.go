package pipeline

import (
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// Profile is an action profile: members, which are actions with arguments that table entries refer
// to. A selector also has groups of members, from which the hash of a packet selects one.
type Profile struct {
	s       *state
	info    *program.Profile
	tables  []*program.Table // tables that use the profile
	members map[uint32]*Member
	groups  map[uint32]*Group
	oneShot int // number of actions in one-shot sets
}

// Weighted is one of the actions from which a group or one-shot set selects. A weight of n gets n
// shares of the hash values. While its watched port is down (SetPortUp), it gets none.
type Weighted struct {
	Call      Call   // in an entry's Set
	Member    uint32 // in a group
	Weight    int    // 1 or more
	WatchPort int    // 0 to 65535; negative: none
}

// Member is a member of a profile. Change it with ModifyMember only.
type Member struct {
	ID   uint32
	Call Call

	act   *bound
	users int // entries and groups
}

// Group is a group of a selector. Change it with ModifyGroup only.
type Group struct {
	ID      uint32
	Members []Weighted
	Max     int // maximum sum of the weights; 0: no limit

	sel   *choice
	users int // entries
}

func newProfile(s *state, info *program.Profile) *Profile {
	return &Profile{s: s, info: info, members: map[uint32]*Member{}, groups: map[uint32]*Group{}}
}

// Info returns the profile's declaration.
func (p *Profile) Info() *program.Profile { return p.info }

// Len returns the number of members, including actions of one-shot sets. It is limited to
// Info().Size, if that is not 0.
func (p *Profile) Len() int { return len(p.members) + p.oneShot }

// Group returns the group with an id, or nil. The group still belongs to the profile.
func (p *Profile) Group(id uint32) *Group { return p.groups[id] }

// Member returns the member with an id, or nil. The member still belongs to the profile.
func (p *Profile) Member(id uint32) *Member { return p.members[id] }

// InsertMember adds a member. Errors: ErrExists, ErrFull, ErrInvalid.
func (p *Profile) InsertMember(id uint32, c Call) error {
	if p.members[id] != nil {
		return fmt.Errorf("%s: member %d %w", p.info.Name, id, ErrExists)
	}
	if err := p.room(1); err != nil {
		return err
	}
	b, err := p.bind(c)
	if err != nil {
		return fmt.Errorf("%s: member %d: %w", p.info.Name, id, err)
	}
	p.members[id] = &Member{ID: id, Call: c, act: b}
	return nil
}

// ModifyMember changes a member's action, for all entries and groups that refer to it. Errors:
// ErrNotFound, ErrInvalid.
func (p *Profile) ModifyMember(id uint32, c Call) error {
	m, err := p.member(id)
	if err != nil {
		return err
	}
	b, err := p.bind(c)
	if err != nil {
		return fmt.Errorf("%s: member %d: %w", p.info.Name, id, err)
	}
	m.Call, *m.act = c, *b // in place, because groups hold the pointer
	p.changed()
	return nil
}

// DeleteMember removes a member. Errors: ErrNotFound, ErrInUse while an entry or
// group refers to it.
func (p *Profile) DeleteMember(id uint32) error {
	m, err := p.member(id)
	if err != nil {
		return err
	}
	if m.users > 0 {
		return fmt.Errorf("%s: member %d: %w: %d entries and groups refer to it; remove these first", p.info.Name, id, ErrInUse, m.users)
	}
	delete(p.members, id)
	return nil
}

// InsertGroup adds a group of existing members; it may be empty. The sum of the weights must not
// exceed limit, unless that is 0. Errors: ErrExists, ErrNotFound (a member), ErrFull (over the
// limit), ErrInvalid.
func (p *Profile) InsertGroup(id uint32, members []Weighted, limit int) error {
	if p.groups[id] != nil {
		return fmt.Errorf("%s: group %d %w", p.info.Name, id, ErrExists)
	}
	g := &Group{ID: id}
	if err := p.fill(g, members, limit); err != nil {
		return err
	}
	p.groups[id] = g
	return nil
}

// ModifyGroup replaces a group's members and limit. Errors: those of InsertGroup, with ErrNotFound
// also for the group.
func (p *Profile) ModifyGroup(id uint32, members []Weighted, limit int) error {
	g, err := p.groupOf(id)
	if err != nil {
		return err
	}
	return p.fill(g, members, limit)
}

// DeleteGroup removes a group. Errors: ErrNotFound, ErrInUse while an entry
// refers to it.
func (p *Profile) DeleteGroup(id uint32) error {
	g, err := p.groupOf(id)
	if err != nil {
		return err
	}
	if g.users > 0 {
		return fmt.Errorf("%s: group %d: %w: %d entries refer to it; remove these first", p.info.Name, id, ErrInUse, g.users)
	}
	p.release(g)
	delete(p.groups, id)
	return nil
}

func (p *Profile) member(id uint32) (*Member, error) {
	if m := p.members[id]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("%s: member %d %w", p.info.Name, id, ErrNotFound)
}

func (p *Profile) groupOf(id uint32) (*Group, error) {
	if g := p.groups[id]; g != nil {
		return g, nil
	}
	return nil, fmt.Errorf("%s: group %d %w", p.info.Name, id, ErrNotFound)
}

// bind checks a call against all tables that may run it. The result has the first table's copy of
// the action; see state.own.
func (p *Profile) bind(c Call) (*bound, error) {
	var b *bound
	for _, t := range p.tables {
		x, err := p.s.bind(t.Actions, Call{p.s.own(t.Actions, c.Action), c.Args})
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", t.Name, err)
		}
		if b == nil {
			b = x
		}
	}
	if b == nil {
		return nil, fmt.Errorf("%w: no table uses the profile", ErrInvalid)
	}
	return b, nil
}

// room checks that n more members fit.
func (p *Profile) room(n int) error {
	if p.info.Size > 0 && p.Len()+n > p.info.Size {
		return fmt.Errorf("%s: %w: %d of %d members are taken, %d more wanted", p.info.Name, ErrFull, p.Len(), p.info.Size, n)
	}
	return nil
}

// fill sets a group's members, or changes nothing on an error.
func (p *Profile) fill(g *Group, members []Weighted, limit int) error {
	fail := func(err error) error { return fmt.Errorf("%s: group %d: %w", p.info.Name, g.ID, err) }
	if !p.info.Selector {
		return fail(fmt.Errorf("%w: an action profile without selector has no groups", ErrInvalid))
	}
	ms := make([]*Member, len(members))
	acts := make([]*bound, len(members))
	seen := make(map[uint32]bool, len(members))
	for i, w := range members {
		m := p.members[w.Member]
		switch {
		case m == nil:
			return fail(fmt.Errorf("member %d %w", w.Member, ErrNotFound))
		case seen[w.Member]:
			return fail(fmt.Errorf("%w: member %d twice; give it a weight instead", ErrInvalid, w.Member))
		}
		seen[w.Member] = true
		ms[i], acts[i] = m, m.act
	}
	sel, err := p.newChoice(members, acts)
	if err != nil {
		return fail(err)
	}
	if limit < 0 {
		return fail(fmt.Errorf("%w: maximal size %d", ErrInvalid, limit))
	}
	if limit > 0 && sel.weights > uint64(limit) {
		return fail(fmt.Errorf("%w: the weights add up to %d, of %d at most", ErrFull, sel.weights, limit))
	}
	for _, m := range ms {
		m.users++
	}
	p.release(g)
	g.Members, g.Max, g.sel = slices.Clone(members), limit, sel
	p.changed()
	return nil
}

// release removes a group from its members' user counts.
func (p *Profile) release(g *Group) {
	for _, w := range g.Members {
		p.members[w.Member].users--
	}
}

// bindSet prepares a one-shot set.
func (p *Profile) bindSet(set []Weighted) (*choice, error) {
	if !p.info.Selector {
		return nil, fmt.Errorf("%s: %w: an action profile without selector takes no sets of actions", p.info.Name, ErrInvalid)
	}
	if len(set) == 0 {
		return nil, fmt.Errorf("%s: %w: a set of no actions", p.info.Name, ErrInvalid)
	}
	if err := p.room(len(set)); err != nil {
		return nil, err
	}
	acts := make([]*bound, len(set))
	for i, w := range set {
		b, err := p.bind(w.Call)
		if err != nil {
			return nil, err
		}
		acts[i] = b
	}
	c, err := p.newChoice(set, acts)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.info.Name, err)
	}
	return c, nil
}
