package switchspec

import (
	"cmp"
	"fmt"
	"slices"
)

// Op is what a Change does.
type Op uint8

// What changes do.
const (
	Insert Op = iota + 1
	Modify
	Delete
)

func (o Op) String() string {
	if o < Insert || o > Delete {
		return fmt.Sprintf("op %d", uint8(o))
	}
	return [...]string{Insert: "insert", Modify: "modify", Delete: "delete"}[o]
}

// A Change is a step from one state to another.
type Change struct {
	Stage  int // changes of a lower stage come before
	Op     Op
	Entity Entity // the new one; for Delete the old one
}

func (c Change) String() string { return fmt.Sprintf("%d %v %v", c.Stage, c.Op, c.Entity) }

// Apply does the changes. Errors wrap ErrConflict (it is there already, or not)
// or ErrInvalid, and name the first that could not be done; those before it
// are done.
func (s *State) Apply(list ...Change) error {
	for _, c := range list {
		if err := valid(c.Entity); err != nil {
			return err
		}
		k := c.Entity.Key()
		if _, there := s.Find(k); there != (c.Op != Insert) {
			return fmt.Errorf("%w: %v", ErrConflict, c)
		}
		if c.Op == Delete {
			s.Delete(k)
		} else if err := s.Put(c.Entity); err != nil {
			return err
		}
	}
	return nil
}

// The stages. What depends on nothing is made first; the matches, on which
// nothing depends, last. Deletion goes backwards.
const (
	stageDetach  = iota // matches that go, or wait
	stageUnmerge        // members of slots that get another group
	stageBase           // settings, neighbors, merge groups, bypasses
	stageRewrite        // PRE groups, replicas, regions, next hops, members
	stageChoice         // ECMP groups
	stageSwitch         // what is in use changes, by one step
	stageCleanup        // what was in use before changes; regions
	stageAttach         // matches
	stageLeave          // routes, members
	stageStrip          // replicas, ECMP and merge groups
	stageBare           // PRE groups, next hops
	stageLast           // neighbors, bypasses
)

// Diff returns the changes that make a switch in state have one in state want, in
// the order in which they are to be done. Equal states have none.
func Diff(have, want *State) []Change {
	d := differ{have: have, want: want, mods: map[Key]bool{}, regions: map[Key]regionChanges{}}
	for k, e := range want.each() {
		switch f, ok := have.Find(k); {
		case !ok:
			d.region(e, Insert)
			d.add(kinds[k.kind].inserts, Insert, e)
		case !equal(f, e):
			d.region(e, Modify)
			d.mods[k] = true
		}
	}
	for k, e := range have.each() {
		switch _, ok := want.Find(k); {
		case !ok && d.reused(e):
			d.add(stageUnmerge, Delete, e)
		case !ok:
			d.region(e, Delete)
			d.add(kinds[k.kind].deletes, Delete, e)
		case k.kind == KindSettings && !d.mods[k] && !equal(e, Settings{}) && want.entities[k] == nil:
			d.mods[k] = true // back to what a new switch has
		}
	}
	d.modify()
	slices.SortFunc(d.out, func(x, y Change) int {
		return cmp.Or(cmp.Compare(x.Stage, y.Stage), x.Entity.Key().compare(y.Entity.Key()), cmp.Compare(x.Op, y.Op))
	})
	return d.out
}

type differ struct {
	have, want *State
	out        []Change
	mods       map[Key]bool          // in both, and different
	regions    map[Key]regionChanges // of a replica
}

// regionChanges counts changes of a replica's regions by what they do.
type regionChanges [Delete + 1]int

func (d *differ) add(stage int, op Op, e Entity) {
	d.out = append(d.out, Change{stage, op, e})
}

func (d *differ) region(e Entity, op Op) {
	if r, ok := e.(Region); ok {
		c := d.regions[r.replica()]
		c[op]++
		d.regions[r.replica()] = c
	}
}

// reused says whether an entity is a member of a slot that gets a new group, or
// the same in another epoch.
func (d *differ) reused(e Entity) bool {
	m, ok := e.(MergeMember)
	if !ok {
		return false
	}
	next, ok := d.want.Find(mergeKey(m.Slot))
	if !ok {
		return false
	}
	last, ok := d.have.Find(mergeKey(m.Slot))
	return !ok || last.(MergeGroup).Epoch != next.(MergeGroup).Epoch
}

// modify decides when what is in both states changes.
func (d *differ) modify() {
	if len(d.mods) == 0 {
		return
	}
	before, after := d.live()
	for i, c := range d.out { // before a packet meets it by a change in use
		if r, ok := c.Entity.(Region); ok && c.Op == Delete && !before[r.replica()] {
			d.out[i].Stage = stageRewrite
		}
	}
	for k := range d.mods {
		e, _ := d.want.Find(k)
		old, _ := d.have.Find(k)
		user := k // whose use counts
		if r, ok := e.(Region); ok {
			user = r.replica()
		}
		switch stage := kinds[k.kind].inserts; {
		case k.kind == KindMatch: // live has done it
		case k.kind == KindMergeMember && d.reused(old):
			d.add(stageUnmerge, Delete, old)
			d.add(stage, Insert, e)
		case before[user] && after[user]:
			d.add(stageSwitch, Modify, e)
		case before[user]:
			d.add(stageCleanup, Modify, e)
		default:
			d.add(stage, Modify, e)
		}
	}
}

// live finds what the groups that stay use in each state, and adds the changes of
// their matches: in one step where that is the only change of what a packet meets,
// else they are removed while everything changes.
func (d *differ) live() (before, after map[Key]bool) {
	before, after = map[Key]bool{}, map[Key]bool{}
	for k, e := range d.have.each() {
		old, ok := e.(Match)
		if !ok {
			continue
		}
		f, ok := d.want.Find(k)
		if !ok {
			continue
		}
		next := f.(Match)
		if d.steps(old, next, before, after) <= 1 {
			if old != next {
				d.add(stageSwitch, Modify, next)
			}
			continue
		}
		d.add(stageDetach, Delete, old)
		d.add(stageAttach, Insert, next)
	}
	return before, after
}

// steps counts the changes that a packet of the group can meet, and notes what
// the group uses.
func (d *differ) steps(old, next Match, before, after map[Key]bool) int {
	most := 0
	if old == next { // the packets of each PRE group by themselves
		old.pre(func(k Key) {
			met := map[Key]bool{}
			n := d.meets(d.have, old.Group, k, before, met) + d.meets(d.want, old.Group, k, after, met)
			most = max(most, n)
		})
		return most
	}
	met := map[Key]bool{}
	most = 1
	old.pre(func(k Key) { most += d.meets(d.have, old.Group, k, before, met) })
	next.pre(func(k Key) { most += d.meets(d.want, next.Group, k, after, met) })
	return most
}

// meets counts the changes in a PRE group and what its copies meet, of those that
// are not yet in met.
func (d *differ) meets(s *State, group uint16, pre Key, live, met map[Key]bool) int {
	n := 0
	visit := func(k Key) {
		live[k] = true
		if !met[k] && d.mods[k] {
			n++
		}
		met[k] = true
	}
	visit(pre)
	e, _ := s.Find(pre)
	g, _ := e.(PREGroup)
	for _, r := range g.Replicas {
		k := replicaKey(group, r.Instance)
		if !met[k] {
			n += d.regionSteps(k)
		}
		visit(k)
		e, _ := s.Find(k)
		if r, _ := e.(Replica); r.NextHop != 0 {
			visit(Neighbor{NextHop: r.NextHop}.Key())
		}
	}
	return n
}

// regionSteps counts the changes of a replica's regions that must not be mixed
// with others. A region that comes or goes by itself is none: a packet meets it or
// not. But those of another receiver are.
func (d *differ) regionSteps(k Key) int {
	c := d.regions[k]
	if !d.mods[k] {
		return c[Modify]
	}
	old, _ := d.have.Find(k)
	next, _ := d.want.Find(k)
	switch wasLast, last := old.(Replica).Last, next.(Replica).Last; {
	case !wasLast && last && c[Delete] == 0: // its regions are there before it is used
		return c[Modify]
	case wasLast && !last && c[Insert] == 0: // and until it is not
		return c[Modify]
	}
	return c[Modify] + c[Insert] + c[Delete]
}
