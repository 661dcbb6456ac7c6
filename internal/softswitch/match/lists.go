package match

import (
	"slices"
	"sort"
)

// lists finds entries with ternary or range fields: those that agree in the
// exact fields form a list in order of priority, found by hash.
//
// An entry's identity is the words of the exact fields; for each loose field two
// bounds of as many words as it has (value and mask of a ternary one, start and
// end of a range); the priority.
type lists struct {
	exact, loose []field
	exactWords   int
	idWords      int
	contiguous   bool       // the exact fields come first among the words
	single       bool       // one loose field of one word
	heads        *index     // words of the exact fields → number of the list
	list         [][]uint32 // by that number: entries, the highest priority first
	buf          []uint64   // words of the exact fields
}

func newLists(fields []field) *lists {
	l := &lists{list: make([][]uint32, 1), contiguous: true}
	n := 0
	for _, f := range fields {
		if f.Kind == Exact {
			l.contiguous = l.contiguous && f.at == l.exactWords
			l.exact = append(l.exact, f)
			l.exactWords += f.n
		} else {
			l.loose = append(l.loose, f)
			n += f.n
		}
	}
	l.single = n == 1 && len(l.loose) == 1
	l.idWords = l.exactWords + 2*n + 1
	l.heads = newIndex(l.exactWords)
	l.buf = make([]uint64, l.exactWords)
	return l
}

func (l *lists) identify(fields []field, k Key, prio int32, id []uint64) error {
	exact, loose := 0, l.exactWords
	for i := range k {
		f, s := &k[i], &fields[i]
		if s.Kind == Exact {
			if err := checkExact(i, f, s.Bits); err != nil {
				return err
			}
			put(id[exact:exact+s.n], f.Value)
			exact += s.n
			continue
		}
		lo, hi := id[loose:loose+s.n], id[loose+s.n:loose+2*s.n]
		loose += 2 * s.n
		put(lo, f.Value)
		switch s.Kind {
		case LPM:
			if err := checkPrefix(i, f, s.Bits); err != nil {
				return err
			}
			for j := range hi {
				hi[j] = prefixWord(j, f.PrefixLen, s.Bits)
			}
		case Ternary:
			if err := checkTernary(i, f, s.Bits); err != nil {
				return err
			}
			put(hi, f.Mask)
		default:
			if err := checkRange(i, f, s.Bits); err != nil {
				return err
			}
			put(hi, f.High)
			if f.Value == nil && f.High == nil { // any
				for j := range hi {
					hi[j] = prefixWord(j, s.Bits, s.Bits)
				}
			}
		}
	}
	id[loose] = uint64(int64(prio))
	return nil
}

func priority(id []uint64) int64 { return int64(id[len(id)-1]) }

func (l *lists) add(ids *index, e uint32) {
	id := ids.key(e)
	h := l.heads.find(id[:l.exactWords])
	if h == 0 {
		if h = l.heads.add(id[:l.exactWords]); int(h) == len(l.list) {
			l.list = append(l.list, nil)
		}
	}
	list := l.list[h]
	p := priority(id)
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
	list := l.list[l.heads.find(exact)]
	if l.single {
		return l.lookupSingle(ids, list, words[l.loose[0].at])
	}
	for _, e := range list {
		if l.matches(ids.key(e)[l.exactWords:], words) {
			return e
		}
	}
	return 0
}

func (l *lists) lookupSingle(ids *index, list []uint32, w uint64) uint32 {
	if l.loose[0].Kind == Range {
		for _, e := range list {
			if b := ids.keys[int(e)*ids.n+l.exactWords:]; b[0] <= w && w <= b[1] {
				return e
			}
		}
		return 0
	}
	for _, e := range list {
		if b := ids.keys[int(e)*ids.n+l.exactWords:]; w&b[1] == b[0] {
			return e
		}
	}
	return 0
}

// matches reports whether the words are within the bounds of the loose fields.
func (l *lists) matches(bounds, words []uint64) bool {
	for i := range l.loose {
		f := &l.loose[i]
		w, lo, hi := words[f.at:f.at+f.n], bounds[:f.n], bounds[f.n:2*f.n]
		bounds = bounds[2*f.n:]
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
