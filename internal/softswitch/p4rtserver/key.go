package p4rtserver

import (
	"bytes"
	"fmt"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// A slab allocates the words of many values at once.
type slab []uint64

func (s *slab) take(bits int) match.Value {
	n := match.Words(bits)
	if n > len(*s) {
		*s = make([]uint64, n)
	}
	v := match.Value((*s)[:n:n])
	*s = (*s)[n:]
	return v
}

// fields reads a list of FieldMatch ("Match Format"). Absent fields are don't care; for a range,
// that means all values.
func (x *keyReader) fields(list []*p4.FieldMatch) (match.Key, error) {
	if len(list) > len(x.spec) { // each at most once, so one is unknown or a duplicate
		list = list[:len(x.spec)+1]
	}
	key := make(match.Key, len(x.spec))
	mem := make(slab, x.words)
	for _, m := range list {
		at := findField(x.spec, x.byID, m.GetFieldId())
		if at < 0 {
			return nil, invalid("%s: there is no field with id %d", x.of, m.GetFieldId())
		}
		f := &x.spec[at]
		if key[at].Value != nil {
			return nil, invalid("%s: %s is given twice", x.of, f)
		}
		if err := readField(f, m, &key[at], &mem); err != nil {
			return nil, invalid("%s: %s: %v", x.of, f, err)
		}
	}
	for i := range x.spec {
		switch f := &x.spec[i]; {
		case key[i].Value != nil:
		case f.kind == p4cfg.MatchField_EXACT:
			return nil, invalid("%s: %s is missing: an exact field cannot be left out", x.of, f)
		case f.kind == p4cfg.MatchField_RANGE:
			key[i].Value, key[i].High = mem.take(f.bits), match.Ones(f.bits)
		}
	}
	return key, nil
}

// A keyReader reads keys with these fields of a table or value set.
type keyReader struct {
	of    fmt.Stringer
	spec  []field
	byID  []int
	words int
}

// readField reads one field of a key.
func readField(f *field, m *p4.FieldMatch, to *match.Field, mem *slab) (err error) {
	value := func(what string, b []byte) match.Value {
		v := mem.take(f.bits)
		if e := parseBits(v, b, f.bits, "field"); e != nil && err == nil {
			err = fmt.Errorf("%s%w", what, e)
		}
		return v
	}
	kind := p4cfg.MatchField_UNSPECIFIED
	switch t := m.GetFieldMatchType().(type) {
	case *p4.FieldMatch_Exact_:
		kind, to.Value = p4cfg.MatchField_EXACT, value("", t.Exact.GetValue())
	case *p4.FieldMatch_Lpm:
		kind, to.Value, to.PrefixLen = p4cfg.MatchField_LPM, value("", t.Lpm.GetValue()), int(t.Lpm.GetPrefixLen())
	case *p4.FieldMatch_Ternary_:
		kind, to.Value, to.Mask = p4cfg.MatchField_TERNARY, value("", t.Ternary.GetValue()), value("mask: ", t.Ternary.GetMask())
	case *p4.FieldMatch_Range_:
		kind, to.Value, to.High = p4cfg.MatchField_RANGE, value("low: ", t.Range.GetLow()), value("high: ", t.Range.GetHigh())
	case *p4.FieldMatch_Optional_:
		kind, to.Value, to.Mask = p4cfg.MatchField_OPTIONAL, value("", t.Optional.GetValue()), match.Ones(f.bits)
	case nil:
		return fmt.Errorf("no match is given; this is a field of type %v", f.kind)
	}
	switch {
	case kind != f.kind:
		return fmt.Errorf("the match is of another type; this is a field of type %v", f.kind)
	case err != nil:
		return err
	case kind == p4cfg.MatchField_LPM && to.PrefixLen == 0:
		return fmt.Errorf("prefix length 0: a field that does not matter must be left out")
	case kind == p4cfg.MatchField_TERNARY && to.Mask.IsZero():
		return fmt.Errorf("mask 0: a field that does not matter must be left out")
	case kind == p4cfg.MatchField_RANGE && allBytes(m.GetRange()):
		return fmt.Errorf("the range is that of all values: a field that does not matter must be left out")
	}
	return match.Spec{Kind: match.Kind(programKind[kind]), Bits: f.bits}.Check(to)
}

// allBytes reports whether a range goes from zeros to ones in the same number of bytes, as in
// bmv2's test for the range of all values. bmv2 accepts any other encoding of that range, and shows
// it if the field does not consist of whole bytes.
func allBytes(r *p4.FieldMatch_Range) bool {
	low, high := r.GetLow(), r.GetHigh()
	return len(low) == len(high) && len(bytes.TrimLeft(low, "\x00")) == 0 && len(bytes.TrimLeft(high, "\xff")) == 0
}

// isAll reports whether a range contains all values.
func isAll(f *match.Field, bits int) bool {
	return f.Value.IsZero() && f.High.Equal(match.Ones(bits))
}

// writeKey is the inverse of fields: don't-care fields are omitted.
func writeKey(spec []field, byID []int, key match.Key) []*p4.FieldMatch {
	out := make([]*p4.FieldMatch, 0, len(key))
	for _, at := range byID {
		f, k := &spec[at], &key[at]
		m := &p4.FieldMatch{FieldId: f.id}
		switch f.kind {
		case p4cfg.MatchField_EXACT:
			m.FieldMatchType = &p4.FieldMatch_Exact_{Exact: &p4.FieldMatch_Exact{Value: k.Value.Bytes()}}
		case p4cfg.MatchField_LPM:
			if k.PrefixLen == 0 {
				continue
			}
			m.FieldMatchType = &p4.FieldMatch_Lpm{Lpm: &p4.FieldMatch_LPM{Value: k.Value.Bytes(), PrefixLen: int32(k.PrefixLen)}}
		case p4cfg.MatchField_TERNARY:
			if k.Mask.IsZero() {
				continue
			}
			m.FieldMatchType = &p4.FieldMatch_Ternary_{Ternary: &p4.FieldMatch_Ternary{Value: k.Value.Bytes(), Mask: k.Mask.Bytes()}}
		case p4cfg.MatchField_RANGE:
			if isAll(k, f.bits) && f.bits%8 == 0 {
				continue
			}
			m.FieldMatchType = &p4.FieldMatch_Range_{Range: &p4.FieldMatch_Range{Low: k.Value.Bytes(), High: k.High.Bytes()}}
		case p4cfg.MatchField_OPTIONAL:
			if k.Mask.IsZero() {
				continue
			}
			m.FieldMatchType = &p4.FieldMatch_Optional_{Optional: &p4.FieldMatch_Optional{Value: k.Value.Bytes()}}
		}
		out = append(out, m)
	}
	return out
}

// readCall reads an action and its arguments ("Action Specification"). list has the allowed
// actions; of is for messages.
func readCall(of fmt.Stringer, list []tableAction, a *p4.Action) (pipeline.Call, *tableAction, error) {
	ta := findAction(list, a.GetActionId())
	if ta == nil {
		return pipeline.Call{}, nil, invalid("%s: action id %d is not one of its actions", of, a.GetActionId())
	}
	c := pipeline.Call{Action: ta.prog}
	if len(ta.params) == 0 && len(a.GetParams()) == 0 {
		return c, ta, nil
	}
	c.Args = make([]match.Value, len(ta.params))
	mem := make(slab, ta.words)
	for _, p := range a.GetParams() {
		at := findField(ta.params, ta.byID, p.GetParamId())
		if at < 0 {
			return c, nil, invalid("%s: %s: there is no parameter with id %d", of, ta, p.GetParamId())
		}
		f := &ta.params[at]
		if c.Args[at] != nil {
			return c, nil, invalid("%s: %s: parameter %d (%s) is given twice", of, ta, f.id, f.name)
		}
		v := mem.take(f.bits)
		if err := parseBits(v, p.GetValue(), f.bits, "parameter"); err != nil {
			return c, nil, invalid("%s: %s: parameter %d (%s): %v", of, ta, f.id, f.name, err)
		}
		c.Args[at] = v
	}
	for i := range ta.params {
		if f := &ta.params[i]; c.Args[i] == nil {
			return c, nil, invalid("%s: %s: parameter %d (%s) is missing", of, ta, f.id, f.name)
		}
	}
	return c, ta, nil
}

// writeCall is the inverse of readCall; nil if the P4Info does not have the action.
func writeCall(list []tableAction, c pipeline.Call) *p4.Action {
	ta := byProgram(list, c.Action)
	if ta == nil {
		return nil
	}
	a := &p4.Action{ActionId: ta.id}
	for _, at := range ta.byID {
		a.Params = append(a.Params, &p4.Action_Param{ParamId: ta.params[at].id, Value: c.Args[at].Bytes()})
	}
	return a
}
