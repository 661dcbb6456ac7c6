package match

import (
	"cmp"
	"errors"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// oracle is a table without any cleverness: a list of entries, on big integers.
type oracle struct {
	specs   []Spec
	size    int
	entries []oracleEntry
}

type oracleEntry struct {
	key  []oracleField
	prio int32
	v    int
}

// oracleField matches x if x&mask == value, or for a range if lo ≤ x ≤ hi.
type oracleField struct {
	kind        Kind
	value, mask *big.Int
	lo, hi      *big.Int
	prefix      int
}

func ones(bits, of int) *big.Int { // the first bits of so many
	x := new(big.Int).Lsh(big.NewInt(1), uint(bits))
	return x.Lsh(x.Sub(x, big.NewInt(1)), uint(of-bits))
}

func (o *oracle) read(k Key) []oracleField {
	out := make([]oracleField, len(k))
	for i, f := range k {
		s := o.specs[i]
		x := oracleField{kind: s.Kind, value: f.Value.Big(), mask: f.Mask.Big(), lo: f.Value.Big(), hi: f.High.Big(), prefix: f.PrefixLen}
		switch {
		case s.Kind == Exact:
			x.mask = ones(s.Bits, s.Bits)
		case s.Kind == LPM:
			x.mask = ones(f.PrefixLen, s.Bits)
		case s.Kind == Range && f.Value == nil && f.High == nil:
			x.hi = ones(s.Bits, s.Bits)
		}
		out[i] = x
	}
	return out
}

func (f *oracleField) same(g *oracleField) bool {
	if f.kind == Range {
		return f.lo.Cmp(g.lo) == 0 && f.hi.Cmp(g.hi) == 0
	}
	return f.value.Cmp(g.value) == 0 && f.mask.Cmp(g.mask) == 0
}

func (f *oracleField) matches(x *big.Int) bool {
	if f.kind == Range {
		return f.lo.Cmp(x) <= 0 && x.Cmp(f.hi) <= 0
	}
	return new(big.Int).And(x, f.mask).Cmp(f.value) == 0
}

func (o *oracle) index(k Key, prio int32) int {
	key := o.read(k)
	return slices.IndexFunc(o.entries, func(e oracleEntry) bool {
		return e.prio == prio && slices.EqualFunc(e.key, key, func(f, g oracleField) bool { return f.same(&g) })
	})
}

func (o *oracle) insert(k Key, prio int32, v int) error {
	switch {
	case o.index(k, prio) >= 0:
		return ErrExists
	case o.size > 0 && len(o.entries) >= o.size:
		return ErrFull
	}
	o.entries = append(o.entries, oracleEntry{o.read(k), prio, v})
	return nil
}

func (o *oracle) lookup(xs []*big.Int) (int, bool) {
	loose := slices.ContainsFunc(o.specs, func(s Spec) bool { return s.Kind > LPM })
	better := func(e, f *oracleEntry) bool { // for e after f in the list
		if loose {
			return e.prio > f.prio
		}
		total := 0
		first := 0
		for i := range e.key {
			total += e.key[i].prefix - f.key[i].prefix
			if first == 0 {
				first = cmp.Compare(e.key[i].prefix, f.key[i].prefix)
			}
		}
		return total > 0 || total == 0 && first > 0
	}
	var best *oracleEntry
	for i := range o.entries {
		e := &o.entries[i]
		hit := true
		for j := range e.key {
			hit = hit && e.key[j].matches(xs[j])
		}
		if hit && (best == nil || better(e, best)) {
			best = e
		}
	}
	if best == nil {
		return 0, false
	}
	return best.v, true
}

// narrow draws a number with few interesting bits, at both ends of the width, so
// that keys meet.
func narrow(t *rapid.T, bits int) *big.Int {
	x := big.NewInt(int64(rapid.IntRange(0, 7).Draw(t, "low")))
	top := big.NewInt(int64(rapid.IntRange(0, 3).Draw(t, "high")))
	x.Or(x, top.Lsh(top, uint(max(bits-2, 0))))
	return x.And(x, ones(bits, bits))
}

func drawSpecs(t *rapid.T, kinds []Kind) []Spec {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Spec {
		return Spec{rapid.SampledFrom(kinds).Draw(t, "kind"), rapid.SampledFrom([]int{1, 3, 9, 32, 63, 64, 65, 128, 130}).Draw(t, "bits")}
	}), 0, 4).Draw(t, "specs")
}

func drawKey(t *rapid.T, specs []Spec) Key {
	k := make(Key, len(specs))
	for i, s := range specs {
		x := narrow(t, s.Bits)
		if s.Kind != Exact && rapid.IntRange(0, 9).Draw(t, "any") == 0 {
			continue
		}
		switch s.Kind {
		case Exact:
			k[i].Value = FromBig(x, s.Bits)
		case LPM:
			n := min(s.Bits, rapid.SampledFrom([]int{0, 1, 2, s.Bits - 2, s.Bits}).Draw(t, "prefix"))
			n = max(n, 0)
			k[i].PrefixLen = n
			k[i].Value = FromBig(x.And(x, ones(n, s.Bits)), s.Bits)
		case Ternary:
			m := narrow(t, s.Bits)
			k[i].Mask = FromBig(m, s.Bits)
			k[i].Value = FromBig(x.And(x, m), s.Bits)
		case Range:
			y := narrow(t, s.Bits)
			if x.Cmp(y) > 0 {
				x, y = y, x
			}
			k[i].Value, k[i].High = FromBig(x, s.Bits), FromBig(y, s.Bits)
		}
	}
	return k
}

// TestTableAgainstOracle compares a table with the oracle over random sequences
// of operations, for each engine and for mixed keys.
func TestTableAgainstOracle(t *testing.T) {
	for _, c := range []struct {
		name  string
		kinds []Kind
	}{
		{"exact", []Kind{Exact}},
		{"LPM", []Kind{LPM, Exact}},
		{"ternary", []Kind{Ternary, Exact}},
		{"range", []Kind{Range, Exact}},
		{"all", []Kind{Exact, LPM, Ternary, Range}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { againstOracle(t, drawSpecs(t, c.kinds)) })
		})
	}
	t.Run("one range", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			bits := rapid.SampledFrom([]int{5, 9, 64, 70}).Draw(t, "bits")
			againstOracle(t, []Spec{{Exact, 1}, {Range, bits}})
		})
	})
}

func againstOracle(t *rapid.T, specs []Spec) {
	size := rapid.SampledFrom([]int{0, 0, 5, 20}).Draw(t, "size")
	table, o := New[int](specs, size), &oracle{specs: specs, size: size}
	var keys []Key
	key := func() (Key, int32) {
		var k Key
		if len(keys) > 0 && rapid.Bool().Draw(t, "old") {
			k = rapid.SampledFrom(keys).Draw(t, "key")
		} else {
			k = drawKey(t, specs)
			keys = append(keys, k)
		}
		if !table.Prioritized() {
			return k, 0
		}
		return k, rapid.Int32Range(-1, 2).Draw(t, "priority")
	}
	next := 1
	t.Repeat(map[string]func(*rapid.T){
		"insert": func(t *rapid.T) {
			k, prio := key()
			got, want := table.Insert(k, prio, next), o.insert(k, prio, next)
			if !errors.Is(got, want) {
				t.Fatalf("Insert(%v, %d): %v, want %v", k, prio, got, want)
			}
			next++
		},
		"delete": func(t *rapid.T) {
			k, prio := key()
			i := o.index(k, prio)
			v, ok := table.Delete(k, prio)
			if ok != (i >= 0) || ok && v != o.entries[i].v {
				t.Fatalf("Delete(%v, %d) = %d, %v; the oracle has entry %d", k, prio, v, ok, i)
			}
			if ok {
				o.entries = slices.Delete(o.entries, i, i+1)
			}
		},
		"find": func(t *rapid.T) {
			k, prio := key()
			i := o.index(k, prio)
			v, ok := table.Find(k, prio)
			if ok != (i >= 0) || ok && v != o.entries[i].v {
				t.Fatalf("Find(%v, %d) = %d, %v; the oracle has entry %d", k, prio, v, ok, i)
			}
		},
		"lookup": func(t *rapid.T) {
			var words []uint64
			var xs []*big.Int
			for _, s := range specs {
				x := narrow(t, s.Bits)
				xs = append(xs, x)
				words = append(words, FromBig(x, s.Bits)...)
			}
			v, ok := table.Lookup(words)
			if want, has := o.lookup(xs); ok != has || v != want {
				t.Fatalf("Lookup(%x) = %d, %v, want %d, %v", words, v, ok, want, has)
			}
		},
		"": func(t *rapid.T) {
			var got, want []int
			for v := range table.All() {
				got = append(got, v)
			}
			for _, e := range o.entries {
				want = append(want, e.v)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) || table.Len() != len(want) {
				t.Fatalf("All yields %v, Len %d, want %v", got, table.Len(), want)
			}
		},
	})
}
