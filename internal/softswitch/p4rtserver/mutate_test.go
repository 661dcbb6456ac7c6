package p4rtserver

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A mutator changes messages in ways that keep them messages: a field gets
// another value, an element goes or comes twice, a part appears or disappears.
type mutator struct {
	*rand.Rand
	ids []uint32 // for fields that are ids
}

// mutate changes a message n times.
func (r *mutator) mutate(m proto.Message, n int) {
	for range n {
		var places []messageField
		collect(m.ProtoReflect(), 0, &places)
		if len(places) == 0 {
			return
		}
		p := places[r.IntN(len(places))]
		r.change(p.m, p.f)
	}
}

// A messageField is a field, set or not.
type messageField struct {
	m protoreflect.Message
	f protoreflect.FieldDescriptor
}

func collect(m protoreflect.Message, depth int, out *[]messageField) {
	if depth > 12 {
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.IsMap() {
			if m.Has(f) && f.MapValue().Message() != nil {
				m.Get(f).Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					collect(v.Message(), depth+1, out)
					return true
				})
			}
			continue
		}
		*out = append(*out, messageField{m, f})
		switch {
		case f.Message() == nil || !m.Has(f):
		case f.IsList():
			for j := range m.Get(f).List().Len() {
				collect(m.Get(f).List().Get(j).Message(), depth+1, out)
			}
		default:
			collect(m.Get(f).Message(), depth+1, out)
		}
	}
}

func (r *mutator) change(m protoreflect.Message, f protoreflect.FieldDescriptor) {
	if f.IsList() {
		r.changeList(m, f)
		return
	}
	if f.Message() != nil {
		if m.Has(f) {
			m.Clear(f)
		} else {
			m.Set(f, m.NewField(f))
		}
		return
	}
	m.Set(f, r.scalar(f, m.Get(f)))
}

func (r *mutator) changeList(m protoreflect.Message, f protoreflect.FieldDescriptor) {
	l := m.Mutable(f).List()
	switch n := l.Len(); {
	case n > 0 && r.IntN(3) == 0: // an element twice
		v := l.Get(r.IntN(n))
		if f.Message() != nil {
			v = protoreflect.ValueOfMessage(proto.Clone(v.Message().Interface()).ProtoReflect())
		}
		l.Append(v)
	case n > 0 && r.IntN(2) == 0: // an element less
		for i := r.IntN(n); i < n-1; i++ {
			l.Set(i, l.Get(i+1))
		}
		l.Truncate(n - 1)
	case f.Message() != nil:
		l.Append(l.NewElement())
	default:
		l.Append(r.scalar(f, l.NewElement()))
	}
}

// numbers are values that programs tend to be wrong about.
var numbers = []int64{0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 31, 32, 33, 64, 255, 256, 510, 511, 512, 65535, 65536,
	math.MaxInt32, math.MaxInt64, -1, math.MinInt32, math.MinInt64}

func (r *mutator) scalar(f protoreflect.FieldDescriptor, old protoreflect.Value) protoreflect.Value {
	n := numbers[r.IntN(len(numbers))]
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(!old.Bool())
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(r.IntN(8)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.Uint32Kind:
		if len(r.ids) > 0 && strings.HasSuffix(string(f.Name()), "id") && r.IntN(2) == 0 {
			return protoreflect.ValueOfUint32(r.ids[r.IntN(len(r.ids))])
		}
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString([]string{"", "x", "In.to", old.String() + "y"}[r.IntN(4)])
	case protoreflect.BytesKind:
		b := slices.Clone(old.Bytes())
		switch {
		case len(b) == 0 || r.IntN(4) == 0:
			b = append(b, byte(n))
		case r.IntN(3) == 0:
			b = b[1:]
		case r.IntN(2) == 0:
			b = append([]byte{byte(r.IntN(2))}, b...)
		default:
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
		return protoreflect.ValueOfBytes(b)
	}
	return f.Default()
}

// cut changes text: a number becomes another one, or a piece is left out or comes
// twice.
func (r *mutator) cut(b []byte) []byte {
	at := r.IntN(len(b))
	end := min(at+r.IntN(200), len(b))
	switch r.IntN(4) {
	case 0:
		return slices.Delete(b, at, end)
	case 1:
		return slices.Insert(b, at, slices.Clone(b[at:end])...)
	}
	for ; at < len(b); at++ {
		if b[at] >= '0' && b[at] <= '9' {
			b[at] = byte('0' + r.IntN(10))
			break
		}
	}
	return b
}
