package switchspec

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
)

// A State is a set of entities. The zero value is the state of a switch whose
// program was just loaded.
type State struct {
	entities map[Key]Entity
}

// Put adds entities, each in the place of the one with its key. Errors wrap
// ErrInvalid; then the entity in question is not added, and others are.
func (s *State) Put(list ...Entity) error {
	if s.entities == nil {
		s.entities = make(map[Key]Entity, len(list))
	}
	var errs error
	for _, e := range list {
		switch err := valid(e); {
		case err != nil:
			errs = errors.Join(errs, err)
		case e == Entity(Settings{}):
			delete(s.entities, e.Key()) // as in a state that has none
		default:
			s.entities[e.Key()] = e
		}
	}
	return errs
}

func valid(e Entity) error {
	if e == nil {
		return bad("no entity")
	}
	return e.check()
}

// Delete takes the entity with that key out, if there is one.
func (s *State) Delete(k Key) { delete(s.entities, k) }

// Find returns the entity with that key. Settings are always there.
func (s *State) Find(k Key) (Entity, bool) {
	if s == nil {
		s = &State{}
	}
	e, ok := s.entities[k]
	if !ok && k.kind == KindSettings {
		return Settings{}, true
	}
	return e, ok
}

// Len is the number of entities.
func (s *State) Len() int {
	if s == nil {
		return 0
	}
	return len(s.entities)
}

// Clone returns a copy that can be changed by itself.
func (s *State) Clone() *State {
	if s == nil {
		return &State{}
	}
	return &State{maps.Clone(s.entities)}
}

// Equal says whether both are the same set of entities.
func (s *State) Equal(o *State) bool {
	if s.Len() != o.Len() {
		return false
	}
	for k, e := range s.each() {
		if f, ok := o.Find(k); !ok || !equal(e, f) {
			return false
		}
	}
	return true
}

// All lists the entities, sorted by kind and key.
func (s *State) All() iter.Seq[Entity] {
	return func(yield func(Entity) bool) {
		if s == nil {
			return
		}
		for _, k := range slices.SortedFunc(maps.Keys(s.entities), Key.compare) {
			if !yield(s.entities[k]) {
				return
			}
		}
	}
}

// Of lists the entities of one type, sorted by key. The one that was listed last may be deleted
// meanwhile.
func Of[T Entity](s *State) iter.Seq[T] {
	return func(yield func(T) bool) {
		var keys []Key
		for k, e := range s.each() {
			if _, ok := e.(T); ok {
				keys = append(keys, k)
			}
		}
		slices.SortFunc(keys, Key.compare)
		for _, k := range keys {
			if !yield(s.entities[k].(T)) {
				return
			}
		}
	}
}

// each lists keys and entities in no order.
func (s *State) each() iter.Seq2[Key, Entity] {
	if s == nil {
		s = &State{}
	}
	return maps.All(s.entities)
}

// Check says which references lead nowhere, as errors that wrap ErrDangling: of
// routes, ECMP groups, replicas and members to what they name, and of a match to
// the PRE groups and to a replica for each copy that they make.
func (s *State) Check() error {
	var errs error
	for e := range s.All() {
		refs(s, e, func(k Key, what string) {
			if _, ok := s.Find(k); !ok {
				errs = errors.Join(errs, fmt.Errorf("%w: %v needs %s", ErrDangling, e, what))
			}
		})
	}
	return errs
}

// refs lists what an entity of the state needs.
func refs(s *State, e Entity, f func(k Key, what string)) {
	neighbor := func(id uint16) {
		if id != 0 {
			f(Neighbor{NextHop: id}.Key(), fmt.Sprint("neighbor ", id))
		}
	}
	hop := func(id uint16) { f(NextHop{ID: id}.Key(), fmt.Sprint("next hop ", id)) }
	switch e := e.(type) {
	case BridgePort:
		if e.FloodGroup != 0 {
			f(PREGroup{ID: e.FloodGroup}.Key(), fmt.Sprint("PRE group ", e.FloodGroup))
		}
	case NextHop:
		neighbor(e.ID)
	case ECMPGroup:
		for _, h := range e.Hops {
			hop(h.NextHop)
		}
	case Route:
		switch e.To {
		case ToNextHop:
			hop(e.Number)
		case ToECMP:
			f(ECMPGroup{ID: e.Number}.Key(), fmt.Sprint("ECMP group ", e.Number))
		}
	case Replica:
		neighbor(e.NextHop)
	case MergeMember:
		f(mergeKey(e.Slot), fmt.Sprint("merge group ", e.Slot))
	case Match:
		e.pre(func(k Key) {
			f(k, fmt.Sprint("PRE group ", k.a))
			pre, _ := s.Find(k)
			g, _ := pre.(PREGroup)
			for _, r := range g.Replicas {
				f(replicaKey(e.Group, r.Instance), fmt.Sprintf("replica %d/%d", e.Group, r.Instance))
			}
		})
	}
}
