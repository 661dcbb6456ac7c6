package program

import "strings"

// headerType is a header type; all instances share its fields.
type headerType struct {
	fields []Field
	index  map[string]int
	bits   int
	varbit int  // the index of the varbit field, or None
	length node // the expression for its length in bits, or null
}

func (l *loader) loadHeaderTypes(root node) {
	l.types = map[string]*headerType{}
	ids := registry{}
	l.declared(root, "header_types", "header type", "fields", "max_length length_exp", &ids, func(i int, n node, name string) {
		l.types[name] = loadHeaderType(n)
	})
}

func loadHeaderType(n node) *headerType {
	t := &headerType{index: map[string]int{}, varbit: None}
	for i, f := range n.get("fields").list() {
		part := f.tuple(2, 4)
		name := part[0].name()
		if _, ok := t.index[name]; ok || name == validName {
			n.invalid("two fields have the name %s", quote(name))
		}
		t.index[name] = i
		field := Field{Name: name, Signed: len(part) > 2 && part[2].truth()}
		if len(part) > 3 && part[3].truth() {
			n.unsupported("field %s is saturating", quote(name))
		}
		if part[1].v == "*" {
			field.Var = true
			if t.varbit != None {
				n.invalid("two varbit fields")
			}
			t.varbit = i
		} else {
			field.Bits = part[1].under("field %s", quote(name)).integer(1, maxBits)
			t.bits += field.Bits
		}
		t.fields = append(t.fields, field)
	}
	if t.varbit != None {
		t.sizeVarbit(n)
		t.length = n.get("length_exp")
	}
	return t
}

// sizeVarbit computes the size of the varbit field: the rest of max_length, which is in bytes and
// of the whole header.
func (t *headerType) sizeVarbit(n node) {
	if !n.has("max_length") {
		n.invalid("a varbit field without max_length")
	}
	bits := 8*n.get("max_length").size(maxVarbit/8) - t.bits
	if bits < 0 {
		n.invalid("max_length leaves %d bits to the varbit field", bits)
	}
	t.fields[t.varbit].Bits = bits
}

func (l *loader) loadHeaders(root node) {
	l.declared(root, "headers", "header", "header_type metadata", "", &l.headers, func(i int, n node, name string) {
		if i == maxHeaders {
			n.unsupported("more than %d headers", maxHeaders)
		}
		typ := n.get("header_type").str()
		t := l.types[typ]
		if t == nil {
			n.invalid("no header type has the name %s", quote(typ))
		}
		l.prog.Headers = append(l.prog.Headers, Header{
			Name: name, Type: typ, Metadata: n.get("metadata").boolean(), Fields: t.fields, Bits: t.bits,
			Stack: None, Source: n.source,
		})
	})
}

func (l *loader) loadStacks(root node) {
	l.declared(root, "header_stacks", "header stack", "header_type size header_ids", "", &l.stacks, func(i int, n node, name string) {
		typ := n.get("header_type").str()
		s := Stack{Name: name}
		for k, id := range n.get("header_ids").list() {
			h := l.headers.numbered(n, "header", id.integer(0, maxID))
			hdr := &l.prog.Headers[h]
			if hdr.Stack != None || hdr.Metadata || hdr.Type != typ {
				n.invalid("header %s cannot be element %d", quote(hdr.Name), k)
			}
			hdr.Stack = i
			s.Headers = append(s.Headers, h)
		}
		if size := n.get("size").integer(1, maxHeaders); size != len(s.Headers) {
			n.invalid("size %d, but %d elements", size, len(s.Headers))
		}
		l.prog.Stacks = append(l.prog.Stacks, s)
	})
}

func (l *loader) loadEnums(root node) {
	l.each(root, "enums", "enum", func(_ int, n node) {
		n = n.object("name entries", "")
		for _, e := range n.get("entries").list() {
			loadEnumerator(e)
		}
	})
}

func loadEnumerator(n node) Enumerator {
	part := n.tuple(2, 2)
	return Enumerator{part[0].name(), uint32(part[1].integer(0, 1<<31-1))}
}

func (l *loader) loadErrors(root node) {
	names, values := map[string]bool{}, map[uint32]bool{}
	l.each(root, "errors", "error", func(_ int, n node) {
		e := loadEnumerator(n)
		if names[e.Name] || values[e.Value] {
			n.invalid("%s or its value %d occurs twice", quote(e.Name), e.Value)
		}
		names[e.Name], values[e.Value] = true, true
		l.prog.Errors = append(l.prog.Errors, e)
	})
}

func (l *loader) loadAliases(root node) {
	l.aliases = map[string]FieldRef{}
	l.each(root, "field_aliases", "field alias", func(_ int, n node) {
		part := n.tuple(2, 2)
		from := part[0].name()
		to := l.fixed(part[1])
		if have, ok := l.aliases[from]; ok && have != to { // p4c repeats some aliases
			n.invalid("%s stands for two fields", quote(from))
		}
		l.aliases[from] = to
	})
	l.each(root, "force_arith", "force_arith", func(_ int, n node) { l.field(n) })
}

// loadStd finds standard metadata by bmv2's names.
func (l *loader) loadStd(root node) {
	names := [numStd]string{
		StdIngressPort:      "standard_metadata.ingress_port",
		StdEgressSpec:       "standard_metadata.egress_spec",
		StdEgressPort:       "standard_metadata.egress_port",
		StdInstanceType:     "standard_metadata.instance_type",
		StdPacketLength:     "standard_metadata.packet_length",
		StdEnqTimestamp:     "queueing_metadata.enq_timestamp",
		StdEnqQdepth:        "queueing_metadata.enq_qdepth",
		StdDeqTimedelta:     "queueing_metadata.deq_timedelta",
		StdDeqQdepth:        "queueing_metadata.deq_qdepth",
		StdIngressTimestamp: "intrinsic_metadata.ingress_global_timestamp",
		StdEgressTimestamp:  "intrinsic_metadata.egress_global_timestamp",
		StdMcastGrp:         "intrinsic_metadata.mcast_grp",
		StdEgressRid:        "intrinsic_metadata.egress_rid",
		StdChecksumError:    "standard_metadata.checksum_error",
		StdParserError:      "standard_metadata.parser_error",
		StdPriority:         "intrinsic_metadata.priority",
	}
	n := root.in("standard metadata")
	for i, name := range names {
		r := l.stdField(name)
		l.prog.Std[i] = r
		if r == NoField {
			if i <= StdPacketLength { // required by v1model
				n.invalid("%s is missing", name)
			}
			continue
		}
		f := l.fieldAt(r)
		if hdr := &l.prog.Headers[r.Header]; !hdr.Metadata || f.Var || f.Bits > 64 || f.Signed {
			n.invalid("%s is not an unsigned metadata field of up to 64 bits", name)
		}
	}
}

func (l *loader) stdField(name string) FieldRef {
	if ref, ok := l.aliases[name]; ok {
		return ref
	}
	header, field, _ := strings.Cut(name, ".")
	h, ok := l.headers.byName[header]
	if !ok {
		return NoField
	}
	f, ok := l.types[l.prog.Headers[h].Type].index[field]
	if !ok {
		return NoField
	}
	return FieldRef{h, f}
}

// validName is the JSON's field name of a header's validity.
const validName = "$valid$"

// fieldAt returns the field; the validity is a field of one bit.
func (l *loader) fieldAt(r FieldRef) Field {
	if r.Field == Valid {
		return Field{Name: validName, Bits: 1}
	}
	return l.prog.Headers[r.Header].Fields[r.Field]
}

// fieldOf returns field i of header h, which is read as a number.
func (l *loader) fieldOf(n node, h, i int) Field {
	fields := l.prog.Headers[h].Fields
	if i >= len(fields) {
		n.invalid("field %d of a header with %d", i, len(fields))
	}
	if fields[i].Var {
		n.unsupported("varbit field %s as a number", quote(fields[i].Name))
	}
	return fields[i]
}

// read returns an expression for a field.
func (l *loader) read(r FieldRef) *Expr {
	f := l.fieldAt(r)
	return &Expr{Op: OpField, Field: r, Bits: f.Bits, Signed: f.Signed}
}

// field loads a pair of names of a header and a field.
func (l *loader) field(n node) FieldRef {
	part := n.tuple(2, 2)
	if _, ok := part[0].v.(*object); ok {
		n.unsupported("a header stack indexed by an expression, other than to read or write a field")
	}
	h := l.headers.named(part[0], "header")
	name, hdr := part[1].str(), &l.prog.Headers[h]
	if name == validName {
		if hdr.Metadata {
			n.invalid("the validity of metadata %s", quote(hdr.Name))
		}
		return FieldRef{h, Valid}
	}
	f, ok := l.types[hdr.Type].index[name]
	if !ok {
		n.invalid("header %s has no field %s", quote(hdr.Name), quote(name))
	}
	return FieldRef{h, f}
}

// readable loads a field or validity of fixed width.
func (l *loader) readable(n node) FieldRef {
	r := l.field(n)
	if f := l.fieldAt(r); f.Var {
		n.unsupported("varbit field %s as a number", quote(f.Name))
	}
	return r
}

// fixed loads an assignable field other than a varbit.
func (l *loader) fixed(n node) FieldRef {
	r := l.readable(n)
	if r.Field == Valid {
		n.invalid("a header's validity is written by setValid and setInvalid only")
	}
	return r
}

// varbit loads a varbit field.
func (l *loader) varbit(n node) FieldRef {
	r := l.field(n)
	if f := l.fieldAt(r); !f.Var {
		n.invalid("field %s is not a varbit", quote(f.Name))
	}
	return r
}

// realHeader loads the name of a header that is not metadata.
func (l *loader) realHeader(n node) int {
	h := l.headers.named(n, "header")
	if hdr := &l.prog.Headers[h]; hdr.Metadata {
		n.unsupported("metadata %s in the place of a header", quote(hdr.Name))
	}
	return h
}

// fieldElement loads an element of a list of fields.
func (l *loader) fieldElement(n node) FieldRef {
	n = n.object("type value", "")
	if t := n.get("type").str(); t != "field" {
		n.unsupported("an element of type %s, not field", quote(t))
	}
	return l.readable(n.get("value"))
}

// typed checks the type in a pair of a type and a value, and returns the value.
func (l *loader) typed(n node, want string) node {
	n = n.object("type value", "")
	if t := n.get("type").str(); t == "expression" {
		n.unsupported("a computed %s", want)
	} else if t != want {
		n.invalid("type %s, want %s", quote(t), want)
	}
	return n.get("value")
}
