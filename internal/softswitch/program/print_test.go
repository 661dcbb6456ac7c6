package program

import (
	"fmt"
	"strings"
)

// String returns the program in a form for people: one line for each thing, by
// name, in the order of its indices.
func (p *Program) String() string {
	w := &printer{p: p}
	w.line(0, "program %q, format %d.%d", p.Name, p.Version[0], p.Version[1])
	w.headers()
	w.std()
	w.parser()
	w.line(0, "deparser%s", w.headerNames(p.Deparser))
	w.externs()
	for _, a := range p.Actions {
		w.action(a)
	}
	w.controls()
	for _, c := range p.Checksums {
		cond := "always"
		if c.Cond != nil {
			cond = "if " + w.expr(c.Cond)
		}
		w.line(0, "checksum %s %s = %s verify=%t update=%t %s at %v", c.Name, w.field(c.Target),
			p.Calculations[c.Calc].Name, c.Verify, c.Update, cond, c.Source)
	}
	return w.String()
}

type printer struct {
	strings.Builder
	p      *Program
	params []Param
}

func (w *printer) line(indent int, format string, args ...any) {
	w.WriteString(strings.Repeat("  ", indent))
	fmt.Fprintf(w, format, args...)
	w.WriteByte('\n')
}

func (w *printer) headers() {
	for _, h := range w.p.Headers {
		kind := "header"
		if h.Metadata {
			kind = "metadata"
		}
		fields := ""
		for _, f := range h.Fields {
			typ := "bit"
			switch {
			case f.Var:
				typ = "varbit"
			case f.Signed:
				typ = "int"
			}
			fields += fmt.Sprintf(" %s:%s<%d>", f.Name, typ, f.Bits)
		}
		w.line(0, "%s %s %s (%d):%s", kind, h.Name, h.Type, h.Bits, fields)
	}
	for _, s := range w.p.Stacks {
		w.line(0, "stack %s:%s", s.Name, w.headerNames(s.Headers))
	}
	for _, e := range w.p.Errors {
		w.line(0, "error %s = %d", e.Name, e.Value)
	}
}

func (w *printer) headerNames(headers []int) string {
	s := ""
	for _, h := range headers {
		s += " " + w.p.Headers[h].Name
	}
	return s
}

func (w *printer) std() {
	for i, name := range [numStd]string{
		StdIngressPort:      "IngressPort",
		StdEgressSpec:       "EgressSpec",
		StdEgressPort:       "EgressPort",
		StdInstanceType:     "InstanceType",
		StdPacketLength:     "PacketLength",
		StdEnqTimestamp:     "EnqTimestamp",
		StdEnqQdepth:        "EnqQdepth",
		StdDeqTimedelta:     "DeqTimedelta",
		StdDeqQdepth:        "DeqQdepth",
		StdIngressTimestamp: "IngressTimestamp",
		StdEgressTimestamp:  "EgressTimestamp",
		StdMcastGrp:         "McastGrp",
		StdEgressRid:        "EgressRid",
		StdChecksumError:    "ChecksumError",
		StdParserError:      "ParserError",
		StdPriority:         "Priority",
	} {
		w.line(0, "std %s = %s", name, w.field(w.p.Std[i]))
	}
}

func (w *printer) parser() {
	for _, v := range w.p.ValueSets {
		w.line(0, "value set %s of %v, size %d", v.Name, v.Bits, v.Size)
	}
	for i, s := range w.p.Parser.States {
		w.line(0, "state %d %s", i, s.Name)
		w.body(s.Ops)
		if len(s.Key) > 0 {
			key := ""
			for _, k := range s.Key {
				key += " " + w.expr(k)
			}
			w.line(1, "select%s", key)
		}
		for _, c := range s.Cases {
			w.line(2, "%s: %s", w.match(c), w.next(c.Next))
		}
	}
}

func (w *printer) match(c Case) string {
	switch {
	case c.Default:
		return "default"
	case c.ValueSet != None:
		return w.p.ValueSets[c.ValueSet].Name
	}
	s := ""
	for i, v := range c.Values {
		if i > 0 {
			s += ", "
		}
		if s += fmt.Sprintf("%#x", v); c.Masks != nil {
			s += fmt.Sprintf(" &&& %#x", c.Masks[i])
		}
	}
	return s
}

func (w *printer) next(state int) string {
	if state == Accept {
		return "accept"
	}
	return w.p.Parser.States[state].Name
}

var algoNames = [...]string{"crc32", "crc16", "csum16", "xor16", "identity", "random"}

func (w *printer) externs() {
	for _, c := range w.p.Calculations {
		in := ""
		for _, i := range c.Input {
			switch i.Kind {
			case CalcField:
				in += " " + w.field(i.Field)
			case CalcConst:
				in += fmt.Sprintf(" %dw%#x", i.Bits, i.Const)
			case CalcHeader:
				in += " " + w.p.Headers[i.Head].Name
			case CalcPayload:
				in += " payload"
			}
		}
		w.line(0, "calculation %s %s:%s", c.Name, algoNames[c.Algo], in)
	}
	for _, c := range w.p.Counters {
		w.line(0, "counter %s size %d%s", c.Name, c.Size, w.direct(c.Table))
	}
	for _, m := range w.p.Meters {
		w.line(0, "meter %s size %d bytes=%t%s to %s", m.Name, m.Size, m.Bytes, w.direct(m.Table), w.field(m.Target))
	}
	for _, r := range w.p.Registers {
		w.line(0, "register %s size %d of bit<%d>", r.Name, r.Size, r.Bits)
	}
	for _, d := range w.p.Digests {
		w.line(0, "digest %d %s:%s", d.ID, d.Name, w.fields(d.Fields))
	}
	for _, f := range w.p.FieldLists {
		w.line(0, "field list %d:%s", f.ID, w.fields(f.Fields))
	}
	for _, a := range w.p.Profiles {
		w.line(0, "profile %s size %d selector=%t %s%s", a.Name, a.Size, a.Selector, algoNames[a.Algo], w.fields(a.Input))
	}
}

func (w *printer) direct(table int) string {
	if table == None {
		return ""
	}
	return " of table " + w.p.Tables[table].Name
}

func (w *printer) fields(refs []FieldRef) string {
	s := ""
	for _, r := range refs {
		s += " " + w.field(r)
	}
	return s
}

func (w *printer) field(r FieldRef) string {
	if r == NoField {
		return "-"
	}
	h := w.p.Headers[r.Header]
	if r.Field == Valid {
		return h.Name + ".$valid$"
	}
	return h.Name + "." + h.Fields[r.Field].Name
}

func (w *printer) action(a Action) {
	params := ""
	for _, p := range a.Params {
		params += fmt.Sprintf(" %s:bit<%d>", p.Name, p.Bits)
	}
	w.line(0, "action %s(%s) at %v", a.Name, strings.TrimSpace(params), a.Source)
	w.params = a.Params
	w.body(a.Body)
	w.params = nil
}

func (w *printer) body(body []Stmt) {
	for i := range body {
		w.line(1, "%d: %s", i, w.stmt(&body[i]))
	}
}

var kindNames = [...]string{"exact", "lpm", "ternary", "range"}

func (w *printer) controls() {
	w.line(0, "ingress begins at %s, egress at %s", w.node(w.p.Ingress), w.node(w.p.Egress))
	for _, c := range w.p.Conditionals {
		w.line(0, "conditional %s: %s ? %s : %s at %v", c.Name, w.expr(c.Cond), w.node(c.True), w.node(c.False), c.Source)
	}
	for i := range w.p.Tables {
		w.table(&w.p.Tables[i])
	}
}

func (w *printer) node(n Node) string {
	switch n.Kind {
	case NodeTable:
		return w.p.Tables[n.Index].Name
	case NodeConditional:
		return w.p.Conditionals[n.Index].Name
	}
	return "end"
}

func (w *printer) table(t *Table) {
	w.line(0, "table %s %s size %d egress=%t timeout=%t at %v", t.Name, kindNames[t.Kind], t.Size, t.Egress, t.Timeout, t.Source)
	for _, k := range t.Key {
		mask := ""
		if k.Mask != nil {
			mask = fmt.Sprintf(" & %#x", k.Mask)
		}
		w.line(1, "key %q %s%s: %s of %d", k.Name, w.field(k.Field), mask, kindNames[k.Match], k.Bits)
	}
	for i, a := range t.Actions {
		if t.HitMiss {
			w.line(1, "action %s", w.p.Actions[a].Name)
		} else {
			w.line(1, "action %s -> %s", w.p.Actions[a].Name, w.node(t.Next[i]))
		}
	}
	if t.HitMiss {
		w.line(1, "hit -> %s, miss -> %s", w.node(t.Hit), w.node(t.Miss))
	}
	w.line(1, "after -> %s", w.node(t.After))
	if t.Counter != None {
		w.line(1, "counter %s", w.p.Counters[t.Counter].Name)
	}
	if t.Meter != None {
		w.line(1, "meter %s", w.p.Meters[t.Meter].Name)
	}
	if t.Profile != None {
		w.line(1, "profile %s", w.p.Profiles[t.Profile].Name)
	}
	if d := t.Default; d != nil {
		w.line(1, "default %s, const action=%t entry=%t", w.call(d.Call), d.ConstAction, d.ConstEntry)
	}
	for _, e := range t.Entries {
		w.line(1, "entry%s priority %d: %s", w.entryKey(t, e), e.Priority, w.call(e.Call))
	}
}

func (w *printer) call(c Call) string {
	args := ""
	for i, a := range c.Args {
		if i > 0 {
			args += ", "
		}
		args += fmt.Sprintf("%#x", a)
	}
	return w.p.Actions[c.Action].Name + "(" + args + ")"
}

func (w *printer) entryKey(t *Table, e Entry) string {
	s := ""
	for i, k := range e.Key {
		switch t.Key[i].Match {
		case Exact:
			s += fmt.Sprintf(" %#x", k.Value)
		case LPM:
			s += fmt.Sprintf(" %#x/%d", k.Value, k.PrefixLen)
		case Ternary:
			s += fmt.Sprintf(" %#x &&& %#x", k.Value, k.Mask)
		case Range:
			s += fmt.Sprintf(" %#x..%#x", k.Value, k.High)
		}
	}
	return s
}
