package match

import (
	"fmt"
	"slices"
)

// put writes v, or zeros if it is nil.
func put(to []uint64, v Value) {
	if v == nil {
		clear(to)
		return
	}
	copy(to, v)
}

// Check returns an error if a field of a key is invalid.
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
