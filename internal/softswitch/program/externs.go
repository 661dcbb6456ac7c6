package program

// refuseExterns rejects extern objects, which only architectures other than v1model define.
func (l *loader) refuseExterns(root node) {
	l.each(root, "extern_instances", "extern instance", func(_ int, n node) {
		if o, ok := n.v.(*object); ok && o.members["source_info"] != nil {
			n.source = n.get("source_info").sourceInfo()
		}
		n.unsupported("there is none of its kind")
	})
}

// arraySize loads the size of an indirect array.
func arraySize(n node) int {
	if !n.has("size") {
		n.invalid("%q is missing", "size")
	}
	return n.get("size").size(maxCells)
}

// Approximate bytes per cell, for the limit on a program's state.
const (
	counterBytes = 16
	meterBytes   = 64
)

func (l *loader) loadCounters(root node) {
	l.declared(root, "counter_arrays", "counter", "", "size is_direct binding", &l.counters, func(i int, n node, name string) {
		c := Counter{Name: name, Table: None}
		if n.flag("is_direct", false) {
			c.Table = pending
			l.bindings = append(l.bindings, func() { l.bindCounter(i, n) })
		} else {
			c.Size = arraySize(n)
			l.allocate(n, c.Size, counterBytes)
		}
		l.prog.Counters = append(l.prog.Counters, c)
	})
}

func (l *loader) loadMeters(root node) {
	l.declared(root, "meter_arrays", "meter", "type rate_count", "size is_direct binding result_target", &l.meters, func(i int, n node, name string) {
		m := Meter{Name: name, Table: None, Target: NoField}
		switch t := n.get("type").str(); t {
		case "bytes":
			m.Bytes = true
		case "packets":
		default:
			n.invalid("type %s, want bytes or packets", quote(t))
		}
		if rates := n.get("rate_count").integer(0, 1<<20); rates != 2 {
			n.unsupported("%d rates, want 2", rates)
		}
		if n.flag("is_direct", false) {
			m.Target = l.fixed(n.get("result_target"))
			l.bindings = append(l.bindings, func() { l.bindMeter(i, n) })
		} else {
			m.Size = arraySize(n)
			l.allocate(n, m.Size, meterBytes)
		}
		l.prog.Meters = append(l.prog.Meters, m)
	})
}

// bindDirect binds direct counters and meters to their tables, and checks that the tables'
// declarations agree.
func (l *loader) bindDirect(root node) {
	p := l.prog
	for _, bind := range l.bindings {
		bind()
	}
	for i, t := range p.Tables {
		n := root.in("table %s", quote(t.Name))
		n.source = t.Source
		if t.Counter == pending {
			n.invalid("no counter is bound to it")
		}
		if t.Meter != None && p.Meters[t.Meter].Table != i {
			n.invalid("meter %s is not bound to it", quote(p.Meters[t.Meter].Name))
		}
	}
}

func (l *loader) bindCounter(i int, n node) {
	t, c := l.bound(n), &l.prog.Counters[i]
	table := &l.prog.Tables[t]
	if table.Counter != pending {
		n.invalid("table %s has no direct counter, or another one", quote(table.Name))
	}
	table.Counter, c.Table, c.Size = i, t, table.Size
}

func (l *loader) bindMeter(i int, n node) {
	t, m := l.bound(n), &l.prog.Meters[i]
	table := &l.prog.Tables[t]
	if table.Meter != i {
		n.invalid("table %s has no direct meter, or another one", quote(table.Name))
	}
	m.Table, m.Size = t, table.Size
}

// bound returns the table that a direct counter or meter is bound to.
func (l *loader) bound(n node) int {
	if !n.has("binding") {
		n.invalid("it is direct, but has no binding")
	}
	return l.tables.named(n.get("binding"), "table")
}

func (l *loader) loadRegisters(root node) {
	l.declared(root, "register_arrays", "register", "size bitwidth", "", &l.registers, func(i int, n node, name string) {
		r := Register{Name: name, Size: arraySize(n), Bits: n.get("bitwidth").integer(1, maxBits)}
		l.allocate(n, r.Size, (r.Bits+63)/64*8)
		l.prog.Registers = append(l.prog.Registers, r)
	})
}

// algorithm loads the name of a hash or checksum algorithm.
func algorithm(n node) Algo {
	a, ok := map[string]Algo{"crc32": CRC32, "crc16": CRC16, "crc32_custom": CRC32, "crc16_custom": CRC16, "csum16": Csum16, "xor16": Xor16, "identity": Identity, "random": Random}[n.str()]
	if !ok {
		n.unsupported("hash algorithm %s", quote(n.str()))
	}
	return a
}

func (l *loader) loadCalculations(root node) {
	l.declared(root, "calculations", "calculation", "algo input", "", &l.calcs, func(i int, n node, name string) {
		c := Calculation{Name: name, Algo: algorithm(n.get("algo")), Source: n.source}
		for k, in := range n.get("input").list() {
			c.Input = append(c.Input, l.calcInput(in.under("input %d", k)))
		}
		l.prog.Calculations = append(l.prog.Calculations, c)
	})
}

func (l *loader) calcInput(n node) CalcInput {
	n = n.object("type", "value bitwidth")
	v := n.get("value")
	switch t := n.get("type").str(); t {
	case "field":
		r := l.field(v)
		if r.Field == Valid {
			n.unsupported("a header's validity as input")
		}
		return CalcInput{Kind: CalcField, Field: r}
	case "hexstr":
		bits := n.get("bitwidth").integer(1, maxBits)
		return CalcInput{Kind: CalcConst, Const: v.unsigned(bits), Bits: bits}
	case "header":
		return CalcInput{Kind: CalcHeader, Head: l.realHeader(v)}
	case "payload":
		return CalcInput{Kind: CalcPayload}
	default:
		n.unsupported("an input of type %s", quote(t))
	}
	return CalcInput{}
}

func (l *loader) loadDigests(root node) {
	l.declared(root, "learn_lists", "digest", "elements", "", &l.digests, func(i int, n node, name string) {
		id := n.get("id").integer(0, maxID)
		d := Digest{ID: id, Name: name}
		for _, e := range n.get("elements").list() {
			d.Fields = append(d.Fields, l.fieldElement(e))
		}
		l.prog.Digests = append(l.prog.Digests, d)
	})
}

func (l *loader) loadFieldLists(root node) {
	l.declared(root, "field_lists", "field list", "elements", "", &l.fieldLists, func(i int, n node, _ string) {
		id := n.get("id").integer(0, maxID)
		f := FieldList{ID: id}
		for _, e := range n.get("elements").list() {
			r := l.fieldElement(e)
			if r.Field == Valid {
				e.unsupported("a header's validity in a field list")
			}
			f.Fields = append(f.Fields, r)
		}
		l.prog.FieldLists = append(l.prog.FieldLists, f)
	})
}

func (l *loader) loadChecksums(root node) {
	ids := registry{}
	l.declared(root, "checksums", "checksum", "target type calculation", "verify update if_cond", &ids, func(i int, n node, name string) {
		if t := n.get("type").str(); t != "generic" {
			n.unsupported("type %s, want generic", quote(t))
		}
		c := Checksum{
			Name:   name,
			Target: l.fixed(n.get("target")),
			Calc:   l.calcs.named(n.get("calculation"), "calculation"),
			Verify: n.flag("verify", true),
			Update: n.flag("update", true),
			Source: n.source,
		}
		if f := l.fieldAt(c.Target); f.Bits > 64 || f.Signed {
			n.unsupported("target %s is not an unsigned field of up to 64 bits", quote(f.Name))
		}
		if cond := n.get("if_cond"); !cond.isNull() {
			c.Cond = l.condition(cond, scope{})
			if c.Cond.Op == OpBool && c.Cond.Const.Sign() != 0 {
				c.Cond = nil
			}
		}
		l.prog.Checksums = append(l.prog.Checksums, c)
	})
}
