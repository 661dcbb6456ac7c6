package match

import (
	"fmt"
	"slices"
)

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

// put writes v, or zeros if it is nil.
func put(to []uint64, v Value) {
	if v == nil {
		clear(to)
		return
	}
	copy(to, v)
}

// Check returns what is wrong with a field of a key.
func (s Spec) Check(f *Field) error {
	switch {
	case s.Kind == Exact && f.Value == nil && s.Bits > 0:
		return fmt.Errorf("an exact field needs a value")
	case f.Mask != nil && s.Kind != Ternary, f.High != nil && s.Kind != Range, f.PrefixLen != 0 && s.Kind != LPM:
		return fmt.Errorf("%s", [...]string{Exact: "an exact field has a value only", LPM: "a prefix has a value and a length only",
			Ternary: "a ternary field has a value and a mask only", Range: "a range has a low and a high end only"}[s.Kind])
	case f.PrefixLen < 0 || f.PrefixLen > s.Bits:
		return fmt.Errorf("prefix length %d of %d bits", f.PrefixLen, s.Bits)
	}
	for _, p := range [...]struct {
		name string
		v    Value
	}{{"value", f.Value}, {"mask", f.Mask}, {"high", f.High}} {
		if p.v != nil && !p.v.Fits(s.Bits) {
			return fmt.Errorf("%s %v is not %d bits wide", p.name, p.v, s.Bits)
		}
	}
	switch s.Kind {
	case LPM:
		for i, w := range f.Value {
			if w&^prefixWord(i, f.PrefixLen, s.Bits) != 0 {
				return fmt.Errorf("value %v has bits outside of its prefix of %d bits", f.Value, f.PrefixLen)
			}
		}
	case Ternary:
		for i, w := range f.Value {
			if f.Mask == nil && w != 0 || f.Mask != nil && w&^f.Mask[i] != 0 {
				return fmt.Errorf("value %v has bits outside of its mask %v", f.Value, f.Mask)
			}
		}
	case Range:
		if !f.Value.IsZero() && (f.High == nil || slices.Compare(f.Value, f.High) > 0) {
			return fmt.Errorf("low %v is greater than high %v", f.Value, f.High)
		}
	}
	return nil
}
