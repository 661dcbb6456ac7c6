package pipeline

import (
	"errors"
	"fmt"
	"math/big"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// ValueSet is a parser value set.
type ValueSet struct {
	info    *program.ValueSet
	members [][]match.Field
	engine  *match.Table[struct{}]
}

func newValueSet(info *program.ValueSet) *ValueSet {
	v := &ValueSet{info: info}
	v.engine = match.New[struct{}](v.specs(nil), 0)
	return v
}

// Info returns the value set's declaration.
func (v *ValueSet) Info() *program.ValueSet { return v.info }

// Get returns the members as passed to Set.
func (v *ValueSet) Get() [][]match.Field { return v.members }

// Set replaces all members. Each has a field for each part of the key, which matches as a range if
// High is set, as ternary if Mask is, as a prefix if PrefixLen is, exactly if only Value is, and
// anything if none is. Errors: ErrFull, ErrExists (a duplicate member), ErrInvalid; then the set is
// unchanged.
func (v *ValueSet) Set(members [][]match.Field) error {
	if v.info.Size > 0 && len(members) > v.info.Size {
		return fmt.Errorf("value set %s: %w: %d members, of %d at most", v.info.Name, ErrFull, len(members), v.info.Size)
	}
	for i, m := range members {
		if len(m) != len(v.info.Bits) {
			return fmt.Errorf("value set %s: member %d: %w: %d fields, not %d", v.info.Name, i, ErrInvalid, len(m), len(v.info.Bits))
		}
	}
	specs := v.specs(members)
	engine := match.New[struct{}](specs, 0)
	for i, m := range members {
		k, err := asSpecs(m, specs)
		if err == nil {
			err = engine.Insert(k, 0, struct{}{})
		}
		switch {
		case errors.Is(err, match.ErrExists):
			return fmt.Errorf("value set %s: member %d %w", v.info.Name, i, ErrExists)
		case errors.Is(err, match.ErrKey):
			return fmt.Errorf("value set %s: member %d: %w: %w", v.info.Name, i, ErrInvalid, err)
		case err != nil:
			return fmt.Errorf("value set %s: member %d: %w", v.info.Name, i, err)
		}
	}
	v.engine, v.members = engine, members
	return nil
}

// specs returns for each part of the key a kind that suits all members.
func (v *ValueSet) specs(members [][]match.Field) []match.Spec {
	specs := make([]match.Spec, len(v.info.Bits))
	for i, bits := range v.info.Bits {
		specs[i].Bits = bits
		for _, m := range members {
			specs[i].Kind = max(specs[i].Kind, kindOf(&m[i]))
		}
	}
	return specs
}

func kindOf(f *match.Field) match.Kind {
	switch {
	case f.High != nil:
		return match.Range
	case f.Mask != nil || f.Value == nil || f.PrefixLen != 0:
		return match.Ternary
	}
	return match.Exact
}

// asSpecs converts a member to the common kinds.
func asSpecs(m []match.Field, specs []match.Spec) (match.Key, error) {
	k := make(match.Key, len(m))
	for i, f := range m {
		bits, have := specs[i].Bits, kindOf(&f)
		ones := match.Ones(bits)
		switch want := specs[i].Kind; {
		case f.PrefixLen < 0 || f.PrefixLen > bits || f.PrefixLen != 0 && (f.Mask != nil || f.High != nil):
			return nil, fmt.Errorf("%w: field %d: prefix length %d of %d bits", ErrInvalid, i, f.PrefixLen, bits)
		case f.PrefixLen != 0: // hence ternary
			f.Mask = match.FromBig(new(big.Int).Lsh(big.NewInt(-1), uint(bits-f.PrefixLen)), bits)
			f.PrefixLen = 0
		case want == match.Ternary && have == match.Exact:
			f.Mask = ones
		case want == match.Range && have == match.Exact:
			f.High = f.Value
		}
		if specs[i].Kind == match.Range && f.Mask != nil {
			return nil, fmt.Errorf("%w: field %d: some members have a range there and others a mask", ErrInvalid, i)
		}
		k[i] = f
	}
	return k, nil
}

// contains reports whether a key with these words, of all parts in order, is in the set.
func (v *ValueSet) contains(words []uint64) bool {
	_, ok := v.engine.Lookup(words)
	return ok
}
