package p4rtserver

import (
	"iter"
	"maps"
	"slices"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
)

// A kept is a kind of entity that the server stores as written, so that it reads back the same; the
// pipeline's state does not store how ports were written, for example. An E is an entity as
// written, a V its value in the state.
type kept[E, V any] struct {
	kind    string // for messages
	entries map[uint32]E

	read   func(E) (V, error)
	keep   func(E) E // converts to the form that is read back
	insert func(uint32, V) error
	modify func(uint32, V) error
	remove func(uint32) error
	entity func(E) *p4.Entity
}

// write applies an update.
func (k *kept[E, V]) write(x *txn, kind p4.Update_Type, id uint32, e E) error {
	put := func(change func(uint32, V) error, e E) func() error {
		return func() error {
			v, err := k.read(e)
			if err == nil {
				err = change(id, v)
			}
			if err == nil {
				k.entries[id] = k.keep(e)
			}
			return err
		}
	}
	remove := func() error {
		err := k.remove(id)
		if err == nil {
			delete(k.entries, id)
		}
		return err
	}
	old := k.entries[id]
	var do, undo func() error
	switch kind {
	case p4.Update_INSERT:
		do, undo = put(k.insert, e), remove
	case p4.Update_MODIFY:
		do, undo = put(k.modify, e), put(k.modify, old)
	default:
		do, undo = remove, put(k.insert, old)
	}
	if err := do(); err != nil {
		return err
	}
	x.done(undo)
	return nil
}

// readTo adds the entity with an id, or all if id is 0.
func (k *kept[E, V]) readTo(r *reader, id uint32) error {
	if id != 0 {
		e, ok := k.entries[id]
		if !ok {
			return fail(codes.NotFound, "there is no %s %d", k.kind, id)
		}
		r.add(k.entity(e))
		return nil
	}
	for _, e := range sorted(k.entries) {
		r.add(k.entity(e))
	}
	return nil
}

// sorted iterates over a map in ascending order of keys.
func sorted[T any](m map[uint32]T) iter.Seq2[uint32, T] {
	return func(yield func(uint32, T) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
