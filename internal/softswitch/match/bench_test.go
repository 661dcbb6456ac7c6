package match

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
)

// load is a table's worth of keys, and the words of a packet that hits each.
type load struct {
	specs []Spec
	keys  []Key
	prio  int32
	words [][]uint64
}

func u(x uint64, bits int) Value { return FromBig(new(big.Int).SetUint64(x), bits) }

const many = 100_000

func loads() map[string]func() load {
	return map[string]func() load{
		"exact 1 word": func() (l load) {
			l.specs = []Spec{{Exact, 48}}
			for i := range uint64(many) {
				x := 0x020000000000 + i*7
				l.keys, l.words = append(l.keys, Key{{Value: u(x, 48)}}), append(l.words, []uint64{x})
			}
			return l
		},
		"exact 3 words": func() (l load) {
			l.specs = []Spec{{Exact, 32}, {Exact, 24}, {Exact, 32}}
			for i := range uint64(many) {
				w := []uint64{0x0a000000 + i>>6, i & 63, 0x0b000001}
				l.keys = append(l.keys, Key{{Value: u(w[0], 32)}, {Value: u(w[1], 24)}, {Value: u(w[2], 32)}})
				l.words = append(l.words, w)
			}
			return l
		},
		"LPM": func() (l load) { // hosts, and a few hundred of 16 shorter lengths
			l.specs = []Spec{{LPM, 32}}
			for i := range uint64(many) {
				n, x := 32, 0x0a000000+i
				if i%200 == 0 {
					n, x = 16+int(i/200)%16, 0x20000000+i/200<<16
				}
				l.keys = append(l.keys, Key{{Value: u(x, 32), PrefixLen: n}})
				l.words = append(l.words, []uint64{x})
			}
			return l
		},
		"exact+LPM 128": func() (l load) {
			l.specs = []Spec{{Exact, 16}, {LPM, 128}}
			for i := range uint64(many) {
				v := Value{0x20010db8<<32 | i, 0}
				l.keys = append(l.keys, Key{{Value: u(i%16, 16)}, {Value: v, PrefixLen: 64}})
				l.words = append(l.words, []uint64{i % 16, v[0], i})
			}
			return l
		},
		"exact3+range": func() (l load) { // 8 ranges for each
			l.specs, l.prio = []Spec{{Exact, 16}, {Exact, 16}, {Exact, 32}, {Range, 64}}, 1
			for i := range uint64(many) {
				w := []uint64{i >> 3 & 0xff, i >> 11, 7, 0x7f0000000000 + i&7<<20}
				l.keys = append(l.keys, Key{{Value: u(w[0], 16)}, {Value: u(w[1], 16)}, {Value: u(w[2], 32)}, {Value: u(w[3], 64), High: u(w[3]+1<<20-1, 64)}})
				w[3] += 77
				l.words = append(l.words, w)
			}
			return l
		},
		"range 100": func() (l load) {
			l.specs, l.prio = []Spec{{Range, 64}}, 1
			for i := range uint64(100) {
				x := i * 8192 * 79 % (100 * 8192)
				l.keys = append(l.keys, Key{{Value: u(x, 64), High: u(x+4095, 64)}})
				l.words = append(l.words, []uint64{x + 4000})
			}
			return l
		},
		"ternary 100": func() (l load) {
			l.specs, l.prio = []Spec{{Ternary, 32}, {Ternary, 16}}, 1
			for i := range uint64(100) {
				x := 0x0a000000 + i<<8
				l.keys = append(l.keys, Key{{Value: u(x, 32), Mask: u(0xffffff00, 32)}, {Value: u(4791, 16), Mask: u(0xffff, 16)}})
				l.words = append(l.words, []uint64{x + 5, 4791})
			}
			return l
		},
	}
}

var loadNames = []string{"exact 1 word", "exact 3 words", "LPM", "exact+LPM 128", "exact3+range", "range 100", "ternary 100"}

func (l load) fill(tb testing.TB) *Table[*int] {
	t, v := New[*int](l.specs, 0), new(int)
	for i, k := range l.keys {
		if err := t.Insert(k, l.prio, v); err != nil {
			tb.Fatalf("key %d: %v", i, err)
		}
	}
	return t
}

func BenchmarkLookup(b *testing.B) {
	for _, name := range loadNames {
		l := loads()[name]()
		t := l.fill(b)
		rand.New(rand.NewPCG(3, 4)).Shuffle(len(l.words), func(i, j int) { l.words[i], l.words[j] = l.words[j], l.words[i] })
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, ok := t.Lookup(l.words[i]); !ok {
					b.Fatalf("no entry for %x", l.words[i])
				}
				if i++; i == len(l.words) {
					i = 0
				}
			}
		})
	}
}

// BenchmarkInsert fills a table, and empties it again.
func BenchmarkInsert(b *testing.B) {
	for _, name := range loadNames {
		l := loads()[name]()
		b.Run(fmt.Sprintf("%s/insert", name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.fill(b)
			}
			b.ReportMetric(float64(b.N*len(l.keys))/b.Elapsed().Seconds(), "entries/s")
		})
		b.Run(fmt.Sprintf("%s/delete", name), func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				b.StopTimer()
				t := l.fill(b)
				b.StartTimer()
				for _, k := range l.keys {
					if _, ok := t.Delete(k, l.prio); ok {
						n++
					}
				}
			}
			if n != b.N*len(l.keys) {
				b.Fatalf("%d deleted", n)
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}

// TestLoads: lookups in full tables allocate nothing, neither hits nor misses;
// and a table that has been emptied searches nowhere any more.
func TestLoads(t *testing.T) {
	for _, name := range loadNames {
		l := loads()[name]()
		table := l.fill(t)
		miss := make([]uint64, len(l.words[0]))
		i := 0
		if n := testing.AllocsPerRun(1000, func() {
			table.Lookup(l.words[i%len(l.words)])
			table.Lookup(miss)
			i++
		}); n != 0 {
			t.Errorf("%s: %v allocations per lookup", name, n)
		}
		for _, k := range l.keys {
			table.Delete(k, l.prio)
		}
		if n := table.Len() + len(table.shapes); n != 0 {
			t.Errorf("%s: %d entries and shapes left", name, n)
		}
		if table.lists != nil && table.lists.heads.live != 0 {
			t.Errorf("%s: %d lists left", name, table.lists.heads.live)
		}
	}
}

// TestHashSpreads: keys with the structure of addresses, counters and masks
// still find their slots after few probes.
func TestHashSpreads(t *testing.T) {
	for name, key := range map[string]func(i uint64) []uint64{
		"counter":      func(i uint64) []uint64 { return []uint64{i} },
		"high bits":    func(i uint64) []uint64 { return []uint64{i << 44} },
		"pages":        func(i uint64) []uint64 { return []uint64{0x7f0000000000 + i<<12} },
		"networks":     func(i uint64) []uint64 { return []uint64{i << 8, 24} },
		"two counters": func(i uint64) []uint64 { return []uint64{i & 255, i >> 8} },
		"three":        func(i uint64) []uint64 { return []uint64{0x0a000001, i & 1023, i >> 10} },
		"five":         func(i uint64) []uint64 { return []uint64{1, 2, i << 32, i & 7, 0} },
	} {
		x := newIndex(len(key(0)))
		for i := range uint64(many) {
			x.add(key(i))
		}
		mask, total := uint32(len(x.slots)-1), 0
		for i, s := range x.slots {
			if s.id != 0 {
				total += int((uint32(i) - s.hash) & mask)
			}
		}
		if mean := float64(total) / many; mean > 1.0 { // 0.31 is to be expected at this load
			t.Errorf("%s: %.2f slots from home on average", name, mean)
		}
	}
}
