package p4rtserver

import (
	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
)

// A dataType is the type of a P4Data: a tree whose leaves, from left to right, are the program's
// fields ("Representation of Arbitrary P4 Types").
type dataType struct {
	kind    dataKind
	bits    int
	members []*dataType
}

type dataKind uint8

const (
	dataBits dataKind = iota
	dataSigned
	dataBool
	dataEnum // with numbers
	dataStruct
	dataTuple
)

// maxDepth limits the nesting of types, which could be cyclic in a P4Info.
const maxDepth = 8

// dataType reads a type whose leaves must have the given widths. On a mismatch it reports a problem
// and returns nil.
func (b *indexer) dataType(what string, spec *p4cfg.P4DataTypeSpec, widths []int) *dataType {
	rest := widths
	t := b.dataNode(what, spec, &rest, 0)
	if t != nil && len(rest) > 0 {
		b.problem("%s has %d fields in the P4Info and %d in the program", what, len(widths)-len(rest), len(widths))
		return nil
	}
	return t
}

func (b *indexer) dataNode(what string, spec *p4cfg.P4DataTypeSpec, rest *[]int, depth int) *dataType {
	if depth > maxDepth {
		b.problem("%s: its type is nested more than %d deep", what, maxDepth)
		return nil
	}
	types := b.info.GetTypeInfo()
	switch s := spec.GetTypeSpec().(type) {
	case *p4cfg.P4DataTypeSpec_Bitstring:
		if i := s.Bitstring.GetInt(); i != nil {
			return b.dataLeaf(what, dataSigned, int(i.GetBitwidth()), rest)
		}
		if bit := s.Bitstring.GetBit(); bit != nil {
			return b.dataLeaf(what, dataBits, int(bit.GetBitwidth()), rest)
		}
	case *p4cfg.P4DataTypeSpec_Bool:
		return b.dataLeaf(what, dataBool, 1, rest)
	case *p4cfg.P4DataTypeSpec_SerializableEnum:
		e := types.GetSerializableEnums()[s.SerializableEnum.GetName()]
		return b.dataLeaf(what, dataEnum, int(e.GetUnderlyingType().GetBitwidth()), rest)
	case *p4cfg.P4DataTypeSpec_NewType:
		n := types.GetNewTypes()[s.NewType.GetName()]
		if n.GetTranslatedType().GetSdnString() != nil {
			b.problem("%s: values of type %s are strings to the controller, which this switch cannot translate", what, s.NewType.GetName())
			return nil
		}
		if n.GetTranslatedType() != nil && len(*rest) > 0 {
			return b.dataLeaf(what, dataBits, (*rest)[0], rest)
		}
		return b.dataNode(what, n.GetOriginalType(), rest, depth+1)
	case *p4cfg.P4DataTypeSpec_Struct:
		st := types.GetStructs()[s.Struct.GetName()]
		if st == nil {
			b.problem("%s: the P4Info does not say what the struct %s is", what, s.Struct.GetName())
			return nil
		}
		specs := make([]*p4cfg.P4DataTypeSpec, len(st.GetMembers()))
		for i, m := range st.GetMembers() {
			specs[i] = m.GetTypeSpec()
		}
		return b.dataMembers(what, dataStruct, specs, rest, depth)
	case *p4cfg.P4DataTypeSpec_Tuple:
		return b.dataMembers(what, dataTuple, s.Tuple.GetMembers(), rest, depth)
	}
	b.problem("%s: its type in the P4Info is not one that v1model can have there: only bit strings, bool, enums with numbers, structs and tuples", what)
	return nil
}

func (b *indexer) dataMembers(what string, kind dataKind, specs []*p4cfg.P4DataTypeSpec, rest *[]int, depth int) *dataType {
	t := &dataType{kind: kind}
	for _, s := range specs {
		m := b.dataNode(what, s, rest, depth+1)
		if m == nil {
			return nil
		}
		t.members = append(t.members, m)
	}
	return t
}

func (b *indexer) dataLeaf(what string, kind dataKind, bits int, rest *[]int) *dataType {
	if len(*rest) == 0 {
		b.problem("%s has more fields in the P4Info than in the program", what)
		return nil
	}
	have := (*rest)[0]
	*rest = (*rest)[1:]
	if bits != have {
		b.problem("%s: a field has %d bits in the P4Info and %d in the program", what, bits, have)
		return nil
	}
	return &dataType{kind: kind, bits: bits}
}

// encode makes a P4Data of the first values and returns the remaining ones.
func (t *dataType) encode(v []match.Value) (*p4.P4Data, []match.Value) {
	switch t.kind {
	case dataStruct, dataTuple:
		list := &p4.P4StructLike{Members: make([]*p4.P4Data, len(t.members))}
		for i, m := range t.members {
			list.Members[i], v = m.encode(v)
		}
		if t.kind == dataTuple {
			return &p4.P4Data{Data: &p4.P4Data_Tuple{Tuple: list}}, v
		}
		return &p4.P4Data{Data: &p4.P4Data_Struct{Struct: list}}, v
	case dataBool:
		return &p4.P4Data{Data: &p4.P4Data_Bool{Bool: v[0].Uint() != 0}}, v[1:]
	case dataEnum:
		return &p4.P4Data{Data: &p4.P4Data_EnumValue{EnumValue: v[0].Bytes()}}, v[1:]
	case dataSigned:
		return &p4.P4Data{Data: &p4.P4Data_Bitstring{Bitstring: signedBytes(v[0], t.bits)}}, v[1:]
	}
	return &p4.P4Data{Data: &p4.P4Data_Bitstring{Bitstring: v[0].Bytes()}}, v[1:]
}

// decode appends the values of a P4Data, which must be of this type.
func (t *dataType) decode(to []match.Value, d *p4.P4Data) ([]match.Value, error) {
	v := make(match.Value, match.Words(t.bits))
	switch t.kind {
	case dataStruct, dataTuple:
		list := d.GetStruct()
		if t.kind == dataTuple {
			list = d.GetTuple()
		}
		if list == nil || len(list.GetMembers()) != len(t.members) {
			return nil, invalid("the data is not the list of %d members that the P4Info describes", len(t.members))
		}
		for i, m := range t.members {
			var err error
			if to, err = m.decode(to, list.GetMembers()[i]); err != nil {
				return nil, err
			}
		}
		return to, nil
	case dataBool:
		s, ok := d.GetData().(*p4.P4Data_Bool)
		if !ok {
			return nil, invalid("the data is not the bool that the P4Info describes")
		}
		if s.Bool {
			v[0] = 1
		}
		return append(to, v), nil
	}
	enum, isEnum := d.GetData().(*p4.P4Data_EnumValue)
	bits, isBits := d.GetData().(*p4.P4Data_Bitstring)
	var b []byte
	switch {
	case isEnum && t.kind == dataEnum:
		b = enum.EnumValue
	case isBits && t.kind != dataEnum:
		b = bits.Bitstring
	default:
		return nil, invalid("the data is not the bit string of %d bits that the P4Info describes", t.bits)
	}
	var err error
	if t.kind == dataSigned {
		v, err = parseSigned(b, t.bits, "register")
	} else {
		err = parseBits(v, b, t.bits, "register")
	}
	if err != nil {
		return nil, fail(codes.OutOfRange, "%v", err)
	}
	return append(to, v), nil
}
