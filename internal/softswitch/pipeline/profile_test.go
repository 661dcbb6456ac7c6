package pipeline

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func port(b *bound) uint64 {
	if b == nil {
		return 999
	}
	return b.args[0]
}

func TestMembers(t *testing.T) {
	s := testState(t)
	p, tb := s.Profile("profile"), s.Table("members")
	wantErr(t, tb.Insert(&Entry{Key: exact(1), Ref: RefMember, Member: 7}), ErrNotFound, "table members", "dst=0x01", "member 7")
	wantErr(t, tb.Insert(&Entry{Key: exact(1), Call: send(1, 1)}), ErrInvalid, "members or groups of profile")
	wantErr(t, tb.Insert(&Entry{Key: exact(1), Ref: RefSet + 1}), ErrInvalid, "unknown kind")
	noErr(t, p.InsertMember(7, send(1, 2)))
	wantErr(t, p.InsertMember(7, send(1, 2)), ErrExists, "profile: member 7")
	wantErr(t, p.InsertMember(8, Call{Action: actOther}), ErrInvalid, "profile: member 8", "table members", "other")
	e := &Entry{Key: exact(1), Ref: RefMember, Member: 7}
	noErr(t, tb.Insert(e))
	if b := e.bound(5); port(b) != 1 || e.selects() {
		t.Errorf("bound to %+v", b)
	}
	noErr(t, p.ModifyMember(7, send(3, 4)))
	if b := e.bound(5); port(b) != 3 || p.members[7].Call.Args[0].Uint() != 3 {
		t.Errorf("after ModifyMember bound to %+v", b)
	}
	wantErr(t, p.ModifyMember(7, Call{Action: actSend}), ErrInvalid, "0 arguments")
	wantErr(t, p.ModifyMember(9, send(1, 2)), ErrNotFound, "member 9")
	wantErr(t, p.DeleteMember(9), ErrNotFound, "member 9")
	wantErr(t, p.DeleteMember(7), ErrInUse, "profile: member 7", "1 entries")
	noErr(t, p.InsertMember(2, send(1, 2)))
	noErr(t, p.InsertMember(9, send(1, 2)))
	wantErr(t, p.InsertMember(10, send(1, 2)), ErrFull, "profile", "3 of 3")
	var ids []uint32
	for m := range ascending(p.members) {
		ids = append(ids, m.ID)
	}
	if !slices.Equal(ids, []uint32{2, 7, 9}) || p.Len() != 3 {
		t.Errorf("members %v", ids)
	}
	wantErr(t, tb.Modify(&Entry{Key: exact(1), Ref: RefMember, Member: 77}), ErrNotFound, "member 77")
	wantErr(t, p.DeleteMember(7), ErrInUse) // the refused Modify did not let it go
	noErr(t, tb.Modify(&Entry{Key: exact(1), Ref: RefMember, Member: 9}))
	noErr(t, p.DeleteMember(7))
	noErr(t, tb.Delete(exact(1), 0))
	noErr(t, p.DeleteMember(9))
	wantErr(t, p.InsertGroup(1, nil, 0), ErrInvalid, "no groups")
	wantErr(t, tb.Insert(&Entry{Key: exact(1), Ref: RefSet, Set: []Weighted{{Call: send(1, 1), Weight: 1}}}), ErrInvalid, "no sets")
}

func TestGroups(t *testing.T) {
	s := testState(t)
	p, tb := s.Profile("selector"), s.Table("groups")
	for i := range uint32(4) {
		noErr(t, p.InsertMember(i, send(uint64(i), 0)))
	}
	wantErr(t, p.InsertMember(5, Call{Action: actWide}), ErrInvalid) // groups2 does not have it
	one := func(ids ...uint32) (ws []Weighted) {
		for _, id := range ids {
			ws = append(ws, Weighted{Member: id, Weight: 1})
		}
		return ws
	}
	for _, c := range []struct {
		ws    []Weighted
		limit int
		want  error
		word  string
	}{
		{one(1, 99), 0, ErrNotFound, "member 99"},
		{one(1, 2, 1), 0, ErrInvalid, "member 1 twice"},
		{[]Weighted{{Member: 1}}, 0, ErrInvalid, "weight 0"},
		{[]Weighted{{Member: 1, Weight: -1}}, 0, ErrInvalid, "weight -1"},
		{[]Weighted{{Member: 1, Weight: 1 << 31}}, 0, ErrInvalid, "weight 2147483648"},
		{one(1, 2, 3), 2, ErrFull, "add up to 3, of 2"},
		{one(1), -1, ErrInvalid, "maximal size -1"},
	} {
		wantErr(t, p.InsertGroup(1, c.ws, c.limit), c.want, "selector: group 1", c.word)
	}
	noErr(t, p.InsertGroup(1, one(0, 1, 2), 5))
	wantErr(t, p.InsertGroup(1, nil, 0), ErrExists, "group 1")
	wantErr(t, tb.Insert(&Entry{Key: exact(1), Ref: RefGroup, Group: 2}), ErrNotFound, "group 2")
	e := &Entry{Key: exact(1), Ref: RefGroup, Group: 1}
	noErr(t, tb.Insert(e))
	for h := range uint64(9) {
		if got := port(e.bound(h)); got != h%3 || !e.selects() {
			t.Errorf("hash %d selects port %d", h, got)
		}
	}
	wantErr(t, p.DeleteMember(1), ErrInUse)
	wantErr(t, p.DeleteGroup(1), ErrInUse, "group 1", "1 entries")
	noErr(t, p.DeleteMember(3))
	noErr(t, p.ModifyMember(1, send(11, 0)))
	if got := port(e.bound(1)); got != 11 {
		t.Errorf("ModifyMember does not reach the group: port %d", got)
	}

	ws := []Weighted{{Member: 2, Weight: 1, WatchPort: 3}, {Member: 1, Weight: 3}, {Member: 0, Weight: 1}}
	wantErr(t, p.ModifyGroup(1, ws, 4), ErrFull)
	if port(e.bound(1)) != 11 || len(p.groups[1].Members) != 3 || p.groups[1].Max != 5 {
		t.Error("a refused ModifyGroup changed the group")
	}
	noErr(t, p.ModifyGroup(1, ws, 0))
	var got []uint64
	for h := range uint64(6) {
		got = append(got, port(e.bound(h)))
	}
	if want := []uint64{2, 11, 11, 11, 0, 2}; !slices.Equal(got, want) {
		t.Errorf("weights 1, 3, 1 select ports %v, want %v", got, want)
	}
	if g := p.groups[1]; g.Members[0].WatchPort != 3 || g.Max != 0 {
		t.Errorf("group %+v", g)
	}
	noErr(t, p.ModifyGroup(1, nil, 0))
	if e.bound(3) != nil {
		t.Error("an empty group selects something")
	}
	noErr(t, p.DeleteMember(1))
	wantErr(t, p.ModifyGroup(2, nil, 0), ErrNotFound, "group 2")
	wantErr(t, p.DeleteGroup(2), ErrNotFound, "group 2")
	noErr(t, tb.Delete(exact(1), 0))
	noErr(t, p.DeleteGroup(1))
	if p.groups[1] != nil {
		t.Error("deleted, yet there")
	}
}

func TestOneShot(t *testing.T) {
	s := testState(t)
	p, tb := s.Profile("selector"), s.Table("groups")
	set := func(ports ...uint64) (ws []Weighted) {
		for _, x := range ports {
			ws = append(ws, Weighted{Call: send(x, 0), Weight: 2})
		}
		return ws
	}
	e := &Entry{Key: exact(1), Ref: RefSet, Set: set(5, 6, 7)}
	noErr(t, tb.Insert(e))
	var got []uint64
	for h := range uint64(7) {
		got = append(got, port(e.bound(h)))
	}
	if want := []uint64{5, 5, 6, 6, 7, 7, 5}; !slices.Equal(got, want) {
		t.Errorf("selects %v, want %v", got, want)
	}
	wantErr(t, tb.Insert(&Entry{Key: exact(2), Ref: RefSet}), ErrInvalid, "no actions")
	wantErr(t, tb.Insert(&Entry{Key: exact(2), Ref: RefSet, Set: []Weighted{{Call: Call{Action: actOther}, Weight: 1}}}), ErrInvalid, "other")
	wantErr(t, tb.Insert(&Entry{Key: exact(2), Ref: RefSet, Set: []Weighted{{Call: send(1, 1)}}}), ErrInvalid, "weight 0")
	wantErr(t, tb.Insert(&Entry{Key: exact(2), Ref: RefSet, Set: set(1, 2, 3, 4, 5, 6)}), ErrFull, "3 of 8", "6 more")
	noErr(t, tb.Modify(&Entry{Key: exact(1), Ref: RefSet, Set: set(1, 2, 3, 4, 5, 6, 7, 8)}))
	if p.Len() != 8 {
		t.Errorf("%d members", p.Len())
	}
	wantErr(t, p.InsertMember(1, send(1, 1)), ErrFull, "8 of 8")
	// In a full profile, a set makes room for what replaces it, and stays if that
	// is refused.
	noErr(t, tb.Modify(&Entry{Key: exact(1), Ref: RefSet, Set: set(11, 12, 13, 14, 15, 16, 17, 18)}))
	wantErr(t, tb.Modify(&Entry{Key: exact(1), Ref: RefSet, Set: set(1, 2, 3, 4, 5, 6, 7, 8, 9)}), ErrFull, "0 of 8", "9 more")
	wantErr(t, tb.Modify(&Entry{Key: exact(1), Ref: RefSet, Set: []Weighted{{Call: send(1, 1)}}}), ErrInvalid, "weight 0")
	if got := port(e.bound(2)); p.Len() != 8 || got != 12 {
		t.Errorf("%d members, selects %d", p.Len(), got)
	}
	noErr(t, tb.Delete(exact(1), 0))
	if p.Len() != 0 {
		t.Errorf("%d members left", p.Len())
	}
}

// TestReferences: after random operations, including failing ones, objects with references stay,
// objects without can be deleted, and users and members are counted correctly.
func TestReferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := newState(stateProgram())
		if err != nil {
			t.Fatal(err)
		}
		p := s.Profile("selector")
		id := func(t *rapid.T) uint32 { return rapid.Uint32Range(0, 3).Draw(t, "id") }
		weighted := func(t *rapid.T) (ws []Weighted) {
			for range rapid.IntRange(0, 4).Draw(t, "n") {
				ws = append(ws, Weighted{Member: id(t), Call: send(1, 1), Weight: rapid.IntRange(0, 5).Draw(t, "weight")})
			}
			return ws
		}
		tables := []*Table{s.Table("groups"), s.Table("groups2")}
		entry := func(t *rapid.T) *Entry {
			return &Entry{Key: exact(uint64(id(t))), Ref: Ref(rapid.IntRange(0, 3).Draw(t, "ref")), Member: id(t), Group: id(t), Set: weighted(t), Call: send(1, 1)}
		}
		table := rapid.SampledFrom(tables)
		known := func(t *rapid.T, err error) {
			for _, s := range []error{nil, ErrExists, ErrNotFound, ErrFull, ErrInvalid, ErrInUse} {
				if errors.Is(err, s) {
					return
				}
			}
			t.Fatalf("unknown error %v", err)
		}
		t.Repeat(map[string]func(*rapid.T){
			"insert member": func(t *rapid.T) { known(t, p.InsertMember(id(t), send(1, 1))) },
			"modify member": func(t *rapid.T) { known(t, p.ModifyMember(id(t), send(2, 2))) },
			"delete member": func(t *rapid.T) { known(t, p.DeleteMember(id(t))) },
			"insert group":  func(t *rapid.T) { known(t, p.InsertGroup(id(t), weighted(t), 12)) },
			"modify group":  func(t *rapid.T) { known(t, p.ModifyGroup(id(t), weighted(t), 12)) },
			"delete group":  func(t *rapid.T) { known(t, p.DeleteGroup(id(t))) },
			"insert":        func(t *rapid.T) { known(t, table.Draw(t, "table").Insert(entry(t))) },
			"modify":        func(t *rapid.T) { known(t, table.Draw(t, "table").Modify(entry(t))) },
			"delete":        func(t *rapid.T) { known(t, table.Draw(t, "table").Delete(exact(uint64(id(t))), 0)) },
			"": func(t *rapid.T) {
				if err := checkReferences(p, tables); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

// checkReferences recounts the users of all members and groups.
func checkReferences(p *Profile, tables []*Table) error {
	members, groups, oneShot := map[*Member]int{}, map[*Group]int{}, 0
	for _, tb := range tables {
		for e := range tb.All() {
			switch e.Ref {
			case RefMember:
				members[p.members[e.Member]]++
			case RefGroup:
				groups[p.groups[e.Group]]++
			case RefSet:
				oneShot += len(e.Set)
			}
			for h := range uint64(15) {
				if b := e.bound(h); b == nil && (e.Ref != RefGroup || len(p.groups[e.Group].Members) > 0) {
					return fmt.Errorf("entry %v is bound to nothing", e.Key)
				}
			}
		}
	}
	for g := range ascending(p.groups) {
		for _, w := range g.Members {
			members[p.members[w.Member]]++
		}
		if g.users != groups[g] {
			return fmt.Errorf("group %d: %d users, counted %d", g.ID, g.users, groups[g])
		}
		delete(groups, g)
	}
	for m := range ascending(p.members) {
		if m.users != members[m] {
			return fmt.Errorf("member %d: %d users, counted %d", m.ID, m.users, members[m])
		}
		delete(members, m)
	}
	if len(members)+len(groups) > 0 {
		return fmt.Errorf("references to %d members and %d groups that are not there", len(members), len(groups))
	}
	if p.oneShot != oneShot || p.Len() > p.info.Size {
		return fmt.Errorf("%d one-shot actions, counted %d; %d members", p.oneShot, oneShot, p.Len())
	}
	return nil
}

// ascending goes through a map by ascending key.
func ascending[T any](m map[uint32]*T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, id := range slices.Sorted(maps.Keys(m)) {
			if x := m[id]; x != nil && !yield(x) {
				return
			}
		}
	}
}
