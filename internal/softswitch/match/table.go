package match

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
)

// Table maps keys to values of type V. See [New] for the entry that Lookup finds.
type Table[V any] struct {
	fields []field
	words  int // of all fields
	size   int

	// An entry's identity is a fixed number of words. For keys without ternary and range fields:
	// the values of all fields, then each prefix length. For others: the exact fields, two bounds
	// for each word of the loose fields, and the priority.
	ids  *index
	vals []V // by number in ids

	shapes []shape // if there are prefixes: the lengths in use, longest first
	lists  *lists  // if there are ternary or range fields
	buf    []uint64
	probe  []uint64
}

// field is a Spec with its position among the words of a key.
type field struct {
	Spec
	at, n int // first word, number of words
}

// shape is a combination of prefix lengths used by some entries.
type shape struct {
	lens    []uint64
	total   uint64
	mask    []uint64 // of all words
	entries int
}

// New returns an empty table for keys of these fields. It holds up to size entries, or any number
// if size is 0 or less.
//
// Without ternary and range fields, at most one entry matches or, among matching entries with
// prefixes, the longest wins (with several prefix fields: the largest sum of lengths, then the
// longer prefix in the first field that differs). Priorities must be 0. With a ternary or range
// field, the largest priority wins, and among equals the entry that was inserted first; a prefix is
// then an ordinary mask.
func New[V any](specs []Spec, size int) *Table[V] {
	t := &Table[V]{size: size, vals: make([]V, 1)}
	lpm, loose := 0, false
	for _, s := range specs {
		f := field{s, t.words, Words(s.Bits)}
		t.fields = append(t.fields, f)
		t.words += f.n
		loose = loose || s.Kind == Ternary || s.Kind == Range
		if s.Kind == LPM {
			lpm++
		}
	}
	n := t.words + lpm
	if loose {
		t.lists = newLists(t.fields)
		n = t.lists.idWords
	}
	t.ids = newIndex(n)
	t.buf = make([]uint64, n)
	t.probe = make([]uint64, n)
	return t
}

// Prioritized reports whether entries have priorities, because there is a ternary or range field.
func (t *Table[V]) Prioritized() bool { return t.lists != nil }

// Len returns the number of entries.
func (t *Table[V]) Len() int { return t.ids.live }

// Check returns ErrKey if Insert would reject the key and priority as invalid.
func (t *Table[V]) Check(k Key, prio int32) error { return t.identify(k, prio, t.buf) }

// identify checks a key and writes the entry's identity to id.
func (t *Table[V]) identify(k Key, prio int32, id []uint64) error {
	if len(k) != len(t.fields) {
		return fmt.Errorf("%w: %d fields, not %d", ErrKey, len(k), len(t.fields))
	}
	for i := range k {
		if err := t.fields[i].Check(&k[i]); err != nil {
			return fmt.Errorf("%w: field %d: %w", ErrKey, i, err)
		}
	}
	if t.lists != nil {
		t.lists.identify(t.fields, k, prio, id)
		return nil
	}
	if prio != 0 {
		return fmt.Errorf("%w: priority %d, but without a ternary or range field there is none: give 0", ErrKey, prio)
	}
	at, lens := 0, t.words
	for i := range k {
		f, s := &k[i], &t.fields[i]
		if s.Kind == LPM {
			id[lens] = uint64(f.PrefixLen)
			lens++
		}
		put(id[at:at+s.n], f.Value)
		at += s.n
	}
	return nil
}

// Insert adds an entry. The table keeps no reference to the key. Errors:
// ErrExists if there is an entry with the same key and priority, ErrFull, and
// ErrKey for a key that does not fit the fields.
func (t *Table[V]) Insert(k Key, prio int32, v V) error {
	id := t.buf
	if err := t.identify(k, prio, id); err != nil {
		return err
	}
	if t.ids.find(id) != 0 {
		return ErrExists
	}
	if t.size > 0 && t.ids.live >= t.size {
		return fmt.Errorf("%w: it holds %d entries", ErrFull, t.size)
	}
	e := t.ids.add(id)
	if int(e) == len(t.vals) {
		t.vals = append(t.vals, v)
	} else {
		t.vals[e] = v
	}
	switch {
	case t.lists != nil:
		t.lists.add(t.ids, e)
	case len(id) > t.words:
		t.addShape(id[t.words:])
	}
	return nil
}

// Find returns the value of exactly this entry.
func (t *Table[V]) Find(k Key, prio int32) (v V, ok bool) {
	if t.identify(k, prio, t.buf) != nil {
		return v, false
	}
	e := t.ids.find(t.buf)
	return t.vals[e], e != 0
}

// Delete removes exactly this entry and returns its value.
func (t *Table[V]) Delete(k Key, prio int32) (v V, ok bool) {
	if t.identify(k, prio, t.buf) != nil {
		return v, false
	}
	e := t.ids.find(t.buf)
	if e == 0 {
		return v, false
	}
	switch {
	case t.lists != nil:
		t.lists.remove(t.ids, e)
	case len(t.buf) > t.words:
		t.removeShape(t.buf[t.words:])
	}
	t.ids.remove(e)
	var zero V
	v, t.vals[e] = t.vals[e], zero
	return v, true
}

// All yields the values of all entries, in an order that depends only on earlier Inserts and
// Deletes. The entry yielded last may be deleted during the iteration.
func (t *Table[V]) All() iter.Seq[V] {
	return func(yield func(V) bool) {
		for e := 1; e < len(t.vals); e++ {
			if t.ids.used[e] && !yield(t.vals[e]) {
				return
			}
		}
	}
}

// Lookup returns the value of the entry that applies to a packet with these key words: those of all
// fields in order, each as in a Value. The number of words must be that of the fields.
func (t *Table[V]) Lookup(words []uint64) (v V, ok bool) {
	var e uint32
	switch {
	case t.lists != nil:
		e = t.lists.lookup(t.ids, words)
	case len(t.probe) > t.words:
		e = t.longest(words)
	default:
		e = t.ids.find(words)
	}
	return t.vals[e], e != 0
}

// longest finds the entry with the longest prefix. Each shape has only entries of its own lengths,
// so the first hit is the result.
func (t *Table[V]) longest(words []uint64) uint32 {
	p := t.probe
	for i := range t.shapes {
		s := &t.shapes[i]
		for j, m := range s.mask {
			p[j] = words[j] & m
		}
		copy(p[len(s.mask):], s.lens)
		if e := t.ids.find(p); e != 0 {
			return e
		}
	}
	return 0
}

func (t *Table[V]) addShape(lens []uint64) {
	i, found := t.findShape(lens)
	if !found {
		s := shape{lens: slices.Clone(lens), mask: make([]uint64, t.words)}
		for _, n := range lens {
			s.total += n
		}
		for _, f := range t.fields {
			n := f.Bits
			if f.Kind == LPM {
				n, lens = int(lens[0]), lens[1:]
			}
			fillPrefix(s.mask[f.at:f.at+f.n], n, f.Bits)
		}
		t.shapes = slices.Insert(t.shapes, i, s)
	}
	t.shapes[i].entries++
}

func (t *Table[V]) removeShape(lens []uint64) {
	i, _ := t.findShape(lens)
	if t.shapes[i].entries--; t.shapes[i].entries == 0 {
		t.shapes = slices.Delete(t.shapes, i, i+1)
	}
}

// findShape finds the position of a combination of lengths among the shapes, which are in the order
// described at New.
func (t *Table[V]) findShape(lens []uint64) (int, bool) {
	var total uint64
	for _, n := range lens {
		total += n
	}
	return slices.BinarySearchFunc(t.shapes, lens, func(s shape, lens []uint64) int {
		return cmp.Or(cmp.Compare(total, s.total), slices.Compare(lens, s.lens))
	})
}
