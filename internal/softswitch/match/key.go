package match

import "fmt"

// identify checks a key and writes the entry's identity to id.
func (t *Table[V]) identify(k Key, prio int32, id []uint64) error {
	if len(k) != len(t.fields) {
		return fmt.Errorf("%w: %d fields, not %d", ErrKey, len(k), len(t.fields))
	}
	if t.lists != nil {
		return t.lists.identify(t.fields, k, prio, id)
	}
	if prio != 0 {
		return fmt.Errorf("%w: priority %d, but without a ternary or range field there is none: give 0", ErrKey, prio)
	}
	at, lens := 0, t.words
	for i := range k {
		f, s := &k[i], &t.fields[i]
		switch s.Kind {
		case LPM:
			if err := checkPrefix(i, f, s.Bits); err != nil {
				return err
			}
			id[lens] = uint64(f.PrefixLen)
			lens++
		default:
			if err := checkExact(i, f, s.Bits); err != nil {
				return err
			}
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

func checkExact(i int, f *Field, bits int) error {
	switch {
	case f.Value == nil && bits > 0:
		return fmt.Errorf("%w: field %d: an exact field needs a value", ErrKey, i)
	case f.Mask != nil || f.High != nil || f.PrefixLen != 0:
		return fmt.Errorf("%w: field %d: an exact field has a value only", ErrKey, i)
	}
	return checkWidth(i, "value", f.Value, bits)
}

func checkPrefix(i int, f *Field, bits int) error {
	switch {
	case f.Mask != nil || f.High != nil:
		return fmt.Errorf("%w: field %d: a prefix has a value and a length only", ErrKey, i)
	case f.PrefixLen < 0 || f.PrefixLen > bits:
		return fmt.Errorf("%w: field %d: prefix length %d of %d bits", ErrKey, i, f.PrefixLen, bits)
	}
	if err := checkWidth(i, "value", f.Value, bits); err != nil {
		return err
	}
	for j, w := range f.Value {
		if w&^prefixWord(j, f.PrefixLen, bits) != 0 {
			return fmt.Errorf("%w: field %d: %v has bits outside of its prefix of %d of %d bits", ErrKey, i, f.Value, f.PrefixLen, bits)
		}
	}
	return nil
}

func checkTernary(i int, f *Field, bits int) error {
	if f.High != nil || f.PrefixLen != 0 {
		return fmt.Errorf("%w: field %d: a ternary field has a value and a mask only", ErrKey, i)
	}
	if err := checkWidth(i, "value", f.Value, bits); err != nil {
		return err
	}
	if err := checkWidth(i, "mask", f.Mask, bits); err != nil {
		return err
	}
	for j, w := range f.Value {
		if f.Mask == nil && w != 0 || f.Mask != nil && w&^f.Mask[j] != 0 {
			return fmt.Errorf("%w: field %d: %v has bits outside of its mask %v", ErrKey, i, f.Value, f.Mask)
		}
	}
	return nil
}

func checkRange(i int, f *Field, bits int) error {
	if f.Mask != nil || f.PrefixLen != 0 {
		return fmt.Errorf("%w: field %d: a range has a start and an end only", ErrKey, i)
	}
	if err := checkWidth(i, "start", f.Value, bits); err != nil {
		return err
	}
	if err := checkWidth(i, "end", f.High, bits); err != nil {
		return err
	}
	if f.Value == nil {
		return nil
	}
	for j, lo := range f.Value {
		var hi uint64
		if f.High != nil {
			hi = f.High[j]
		}
		if lo != hi {
			if lo > hi {
				return fmt.Errorf("%w: field %d: the range starts at %v, behind its end %v", ErrKey, i, f.Value, f.High)
			}
			break
		}
	}
	return nil
}

// checkWidth refuses what is neither nil nor a Value of that many bits.
func checkWidth(i int, what string, v Value, bits int) error {
	if v == nil || v.Fits(bits) {
		return nil
	}
	return fmt.Errorf("%w: field %d: %s %v is not %d bits wide", ErrKey, i, what, v, bits)
}
