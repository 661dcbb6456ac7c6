package match

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestBadKeys: each key that does not fit its field is rejected with ErrKey and a reason, and
// changes nothing.
func TestBadKeys(t *testing.T) {
	e, l, te, r := Spec{Exact, 9}, Spec{LPM, 32}, Spec{Ternary, 65}, Spec{Range, 16}
	wide := Value{1, 0}
	for _, c := range []struct {
		specs []Spec
		key   Key
		prio  int32
		want  string
	}{
		{[]Spec{e}, Key{}, 0, "0 fields, not 1"},
		{[]Spec{e}, Key{{Value: u(1, 9)}, {}}, 0, "2 fields, not 1"},
		{[]Spec{e}, Key{{}}, 0, "needs a value"},
		{[]Spec{e}, Key{{Value: Value{512}}}, 0, "not 9 bits wide"},
		{[]Spec{e}, Key{{Value: Value{0, 1}}}, 0, "not 9 bits wide"},
		{[]Spec{e}, Key{{Value: Value{}}}, 0, "not 9 bits wide"},
		{[]Spec{e}, Key{{Value: u(1, 9), Mask: u(1, 9)}}, 0, "a value only"},
		{[]Spec{e}, Key{{Value: u(1, 9), High: u(1, 9)}}, 0, "a value only"},
		{[]Spec{e}, Key{{Value: u(1, 9), PrefixLen: 9}}, 0, "a value only"},
		{[]Spec{e}, Key{{Value: u(1, 9)}}, 1, "give 0"},
		{[]Spec{l}, Key{{Value: u(0, 32), PrefixLen: 33}}, 0, "33 of 32"},
		{[]Spec{l}, Key{{Value: u(0, 32), PrefixLen: -1}}, 0, "-1 of 32"},
		{[]Spec{l}, Key{{Value: u(0x0a000001, 32), PrefixLen: 31}}, 0, "outside of its prefix"},
		{[]Spec{l}, Key{{Value: u(1, 32)}}, 0, "outside of its prefix"},
		{[]Spec{l}, Key{{Value: Value{1 << 32}, PrefixLen: 32}}, 0, "not 32 bits wide"},
		{[]Spec{l}, Key{{Value: u(0, 32), Mask: u(0, 32)}}, 0, "a length only"},
		{[]Spec{l}, Key{{Value: u(0, 32), High: u(0, 32)}}, 0, "a length only"},
		{[]Spec{l}, Key{{}}, 1, "give 0"},
		{[]Spec{te}, Key{{Value: wide, Mask: Value{0, 1}}}, 0, "outside of its mask"},
		{[]Spec{te}, Key{{Value: wide}}, 0, "outside of its mask"},
		{[]Spec{te}, Key{{Value: Value{2, 0}, Mask: wide}}, 0, "value 0x020000000000000000 is not 65 bits wide"},
		{[]Spec{te}, Key{{Value: wide, Mask: Value{3, 0}}}, 0, "mask 0x030000000000000000 is not 65 bits wide"},
		{[]Spec{te}, Key{{High: wide}}, 0, "a mask only"},
		{[]Spec{te}, Key{{PrefixLen: 1}}, 0, "a mask only"},
		{[]Spec{te, e}, Key{{}, {}}, 0, "needs a value"},
		{[]Spec{te, l}, Key{{}, {Value: u(1, 32), PrefixLen: 31}}, 0, "outside of its prefix"},
		{[]Spec{r}, Key{{Value: u(2, 16), High: u(1, 16)}}, 0, "is greater than high"},
		{[]Spec{r}, Key{{Value: u(2, 16)}}, 0, "is greater than high"},
		{[]Spec{r}, Key{{Value: Value{1 << 16}, High: Value{1 << 17}}}, 0, "value 0x010000 is not 16 bits wide"},
		{[]Spec{r}, Key{{Value: u(1, 16), High: Value{1 << 17}}}, 0, "high 0x020000 is not 16 bits wide"},
		{[]Spec{r}, Key{{Mask: u(1, 16)}}, 0, "a high end only"},
		{[]Spec{r}, Key{{PrefixLen: 1}}, 0, "a high end only"},
		{[]Spec{{Range, 65}}, Key{{Value: wide, High: Value{0, 5}}}, 0, "is greater than high"},
	} {
		table := New[int](c.specs, 0)
		for _, err := range []error{table.Check(c.key, c.prio), table.Insert(c.key, c.prio, 1)} {
			if !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: key %v: %v, want ErrKey with %q", c.specs, c.key, err, c.want)
			}
		}
		if _, ok := table.Find(c.key, c.prio); ok || table.Len() != 0 {
			t.Errorf("%v: key %v was inserted all the same", c.specs, c.key)
		}
		if _, ok := table.Delete(c.key, c.prio); ok {
			t.Errorf("%v: key %v was deleted", c.specs, c.key)
		}
	}
}

// TestZeroFields: the zero Field is "don't care", and the same entry as one that
// says so.
func TestZeroFields(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		same Field
	}{
		{Spec{LPM, 32}, Field{Value: u(0, 32)}},
		{Spec{Ternary, 70}, Field{Value: Value{0, 0}, Mask: Value{0, 0}}},
		{Spec{Range, 70}, Field{Value: Value{0, 0}, High: Value{63, ^uint64(0)}}},
		{Spec{Range, 16}, Field{High: u(0xffff, 16)}},
	} {
		table := New[string]([]Spec{c.spec}, 0)
		if err := table.Insert(Key{{}}, 0, "any"); err != nil {
			t.Fatal(err)
		}
		if v, ok := table.Lookup(u(77, c.spec.Bits)); !ok || v != "any" {
			t.Errorf("%v: no match", c.spec)
		}
		if err := table.Insert(Key{c.same}, 0, "again"); !errors.Is(err, ErrExists) {
			t.Errorf("%v: %v counts as another key than the zero Field: %v", c.spec, c.same, err)
		}
	}
}

// TestFull: a table of a size takes that many, and again after a Delete; a
// duplicate is reported as such even then.
func TestFull(t *testing.T) {
	table := New[int]([]Spec{{Exact, 8}}, 2)
	key := func(x uint64) Key { return Key{{Value: u(x, 8)}} }
	for i, want := range []error{nil, nil, ErrFull} {
		if err := table.Insert(key(uint64(i)), 0, i); !errors.Is(err, want) {
			t.Fatalf("entry %d: %v, want %v", i, err, want)
		}
	}
	if err := table.Insert(key(1), 0, 1); !errors.Is(err, ErrExists) {
		t.Errorf("duplicate in a full table: %v", err)
	}
	table.Delete(key(0), 0)
	if err := table.Insert(key(2), 0, 2); err != nil {
		t.Errorf("after a Delete: %v", err)
	}
}

// TestDeleteWhileIterating: every entry is yielded once although each is deleted
// when it is.
func TestDeleteWhileIterating(t *testing.T) {
	table := New[uint64]([]Spec{{Exact, 16}}, 0)
	for i := range uint64(1000) {
		if err := table.Insert(Key{{Value: u(i, 16)}}, 0, i); err != nil {
			t.Fatal(err)
		}
	}
	seen := 0
	for i := range table.All() {
		if _, ok := table.Delete(Key{{Value: u(i, 16)}}, 0); !ok {
			t.Fatalf("entry %d was yielded but is not there", i)
		}
		seen++
	}
	if seen != 1000 || table.Len() != 0 {
		t.Errorf("%d entries yielded, %d left", seen, table.Len())
	}
}

// TestManyRanges has thousands of overlapping
// ranges, of which the best is found also after half of them have gone.
func TestManyRanges(t *testing.T) {
	type span struct {
		lo, hi uint64
		prio   int32
		id     int
	}
	rng := rand.New(rand.NewPCG(5, 6))
	table := New[int]([]Spec{{Range, 32}}, 0)
	key := func(s span) Key { return Key{{Value: u(s.lo, 32), High: u(s.hi, 32)}} }
	var list []span
	for i := range 3000 {
		s := span{lo: rng.Uint64N(1 << 20), prio: rng.Int32N(5) - 2, id: i}
		s.hi = s.lo + rng.Uint64N(1<<rng.UintN(18))
		switch err := table.Insert(key(s), s.prio, i); {
		case err == nil:
			list = append(list, s)
		case !errors.Is(err, ErrExists):
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		for range 3000 {
			x := rng.Uint64N(1<<20 + 1000)
			if rng.IntN(2) == 0 { // an edge
				s := list[rng.IntN(len(list))]
				x = []uint64{s.lo, s.hi, s.hi + 1, s.lo - min(s.lo, 1)}[rng.IntN(4)]
			}
			want := span{prio: -100}
			for _, s := range list {
				if s.lo <= x && x <= s.hi && s.prio > want.prio {
					want = s
				}
			}
			if v, ok := table.Lookup([]uint64{x}); ok != (want.prio > -100) || v != want.id {
				t.Fatalf("Lookup(%d) = %d, %v, want %+v", x, v, ok, want)
			}
		}
	}
	check()
	for range 1500 {
		i := rng.IntN(len(list))
		if v, ok := table.Delete(key(list[i]), list[i].prio); !ok || v != list[i].id {
			t.Fatalf("Delete(%+v) = %d, %v", list[i], v, ok)
		}
		list = slices.Delete(list, i, i+1)
	}
	check()
}

// TestLongLists: many entries of few priorities in one list keep their order
// through insertions and deletions.
func TestLongLists(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	table := New[int]([]Spec{{Ternary, 16}}, 0)
	type entry struct {
		x    uint64
		prio int32
	}
	var order []entry // by priority, then age
	for i := range 500 {
		e := entry{uint64(i), rng.Int32N(4)}
		if err := table.Insert(Key{{Value: u(e.x, 16), Mask: u(e.x, 16)}}, e.prio, i); err != nil {
			t.Fatal(err)
		}
		order = append(order, e)
	}
	slices.SortStableFunc(order, func(a, b entry) int { return int(b.prio - a.prio) })
	for len(order) > 0 { // all match 0xffff
		if v, ok := table.Lookup([]uint64{0xffff}); !ok || uint64(v) != order[0].x {
			t.Fatalf("Lookup = %d, %v, want %+v", v, ok, order[0])
		}
		for _, i := range []int{rng.IntN(len(order)), 0} {
			if i < len(order) {
				e := order[i]
				if v, ok := table.Delete(Key{{Value: u(e.x, 16), Mask: u(e.x, 16)}}, e.prio); !ok || uint64(v) != e.x {
					t.Fatalf("Delete(%+v) = %d, %v", e, v, ok)
				}
				order = slices.Delete(order, i, i+1)
			}
		}
	}
}

// TestHashCollisions: keys with the same hash are distinguished, for all key lengths.
func TestHashCollisions(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for n := 1; n <= 5; n++ {
		x, seen, pairs := newIndex(n), map[uint32][]uint64{}, 0
		for range 300_000 { // about ten pairs of 32-bit hashes
			w := make([]uint64, n)
			w[n-1] = rng.Uint64()
			h := hashWords(w)
			other := seen[h]
			if other == nil {
				seen[h] = w
				continue
			}
			pairs++
			a := x.add(w)
			if b := x.find(other); b != 0 {
				t.Fatalf("%x is found as %x", other, w)
			}
			b := x.add(other)
			if x.find(w) != a || x.find(other) != b {
				t.Fatalf("%x and %x are found as %d and %d, not %d and %d", w, other, x.find(w), x.find(other), a, b)
			}
		}
		if pairs == 0 {
			t.Errorf("%d words: no collision to test with", n)
		}
	}
}
