package match

import (
	"slices"
	"sort"
)

// lists finds entries with ternary or range fields. Entries with the same exact fields form a list
// in order of priority, which is found by hash and searched linearly, as bmv2 searches the whole
// table.
//
// An entry's identity consists of the words of the exact fields; a lower bound for each word of the
// others (the value of a ternary field, the start of a range); an upper bound for each (the mask,
// the end); and the priority.
type lists struct {
	exact, loose []field
	exactWords   int
	looseAt      []int // positions of the loose fields' words among a packet's words
	idWords      int
	contiguous   bool       // the exact fields are the first words
	heads        *index     // words of the exact fields → number of the list
	list         [][]uint32 // by list number: entries, highest priority first
	buf          []uint64   // words of the exact fields
}

func newLists(fields []field) *lists {
	l := &lists{list: make([][]uint32, 1), contiguous: true}
	for _, f := range fields {
		if f.Kind == Exact {
			l.contiguous = l.contiguous && f.at == l.exactWords
			l.exact = append(l.exact, f)
			l.exactWords += f.n
			continue
		}
		l.loose = append(l.loose, f)
		for j := range f.n {
			l.looseAt = append(l.looseAt, f.at+j)
		}
	}
	l.idWords = l.exactWords + 2*len(l.looseAt) + 1
	l.heads = newIndex(l.exactWords)
	l.buf = make([]uint64, l.exactWords)
	return l
}

// identify writes the identity of an entry with a checked key.
func (l *lists) identify(fields []field, k Key, prio int32, id []uint64) {
	exact, loose := 0, l.exactWords
	for i := range k {
		f, s := &k[i], &fields[i]
		if s.Kind == Exact {
			put(id[exact:exact+s.n], f.Value)
			exact += s.n
			continue
		}
		lo, hi := id[loose:loose+s.n], id[loose+len(l.looseAt):][:s.n]
		loose += s.n
		put(lo, f.Value)
		switch {
		case s.Kind == LPM:
			fillPrefix(hi, f.PrefixLen, s.Bits)
		case s.Kind == Ternary:
			put(hi, f.Mask)
		case f.Value == nil && f.High == nil: // any
			fillPrefix(hi, s.Bits, s.Bits)
		default:
			put(hi, f.High)
		}
	}
	id[len(id)-1] = uint64(int64(prio))
}

func priority(id []uint64) int64 { return int64(id[len(id)-1]) }

func (l *lists) add(ids *index, e uint32) {
	id := ids.key(e)
	h := l.heads.find(id[:l.exactWords])
	if h == 0 {
		h = l.heads.add(id[:l.exactWords])
	}
	p := priority(id)
	if int(h) == len(l.list) {
		l.list = append(l.list, nil)
	}
	list := l.list[h]
	at := sort.Search(len(list), func(i int) bool { return priority(ids.key(list[i])) < p })
	l.list[h] = slices.Insert(list, at, e)
}

func (l *lists) remove(ids *index, e uint32) {
	id := ids.key(e)
	h := l.heads.find(id[:l.exactWords])
	list := l.list[h]
	p := priority(id)
	at := sort.Search(len(list), func(i int) bool { return priority(ids.key(list[i])) <= p })
	for list[at] != e {
		at++
	}
	if l.list[h] = slices.Delete(list, at, at+1); len(l.list[h]) == 0 {
		l.heads.remove(h)
	}
}

func (l *lists) lookup(ids *index, words []uint64) uint32 {
	exact := words[:l.exactWords]
	if !l.contiguous {
		exact = l.buf
		n := 0
		for _, f := range l.exact {
			n += copy(exact[n:], words[f.at:f.at+f.n])
		}
	}
	h := l.heads.find(exact)
	for _, e := range l.list[h] {
		bounds := ids.key(e)[l.exactWords:]
		if l.matches(bounds, words) {
			return e
		}
	}
	return 0
}

// matches reports whether the words match the bounds of the loose fields.
func (l *lists) matches(bounds, words []uint64) bool {
	at := 0
	for i := range l.loose {
		f := &l.loose[i]
		w, lo, hi := words[f.at:f.at+f.n], bounds[at:at+f.n], bounds[at+len(l.looseAt):][:f.n]
		at += f.n
		if f.Kind == Range {
			if slices.Compare(lo, w) > 0 || slices.Compare(w, hi) > 0 {
				return false
			}
			continue
		}
		for j := range w {
			if w[j]&hi[j] != lo[j] {
				return false
			}
		}
	}
	return true
}
