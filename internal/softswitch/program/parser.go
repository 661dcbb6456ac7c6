package program

import "math/big"

func (l *loader) loadValueSets(root node) {
	l.declared(root, "parse_vsets", "value set", "compressed_bitwidth", "max_size", &l.valueSets, func(i int, n node, name string) {
		v := ValueSet{Name: name, Bits: []int{n.get("compressed_bitwidth").integer(1, maxBits)}, Size: 1 << 10}
		if n.has("max_size") {
			v.Size = n.get("max_size").size(maxCells)
		}
		l.prog.ValueSets = append(l.prog.ValueSets, v)
	})
	l.setsUsed = make([]bool, len(l.prog.ValueSets))
}

func (l *loader) loadParser(root node) {
	list := root.get("parsers").list()
	if len(list) != 1 {
		root.get("parsers").unsupported("%d parsers, want one", len(list))
	}
	n := list[0].object("name id init_state parse_states", "")
	nodes := n.get("parse_states").list()
	states := registry{}
	order := make([]node, len(nodes))
	for i, s := range nodes {
		s = s.in("parser state %d", i).object("name id parser_ops transitions transition_key", "")
		name := states.add(s, i)
		order[i] = s.in("parser state %s", quote(name))
	}
	if first := states.named(n.get("init_state"), "parser state"); first != 0 {
		order[0], order[first] = order[first], order[0]
		states.byName[order[0].get("name").str()] = 0
		states.byName[order[first].get("name").str()] = first
	}
	for _, s := range order {
		l.prog.Parser.States = append(l.prog.Parser.States, l.parserState(s, &states))
	}
}

func (l *loader) parserState(n node, states *registry) State {
	s := State{Name: n.get("name").str(), Source: n.source}
	for _, op := range n.get("parser_ops").list() {
		s.Ops = append(s.Ops, l.parserOp(op))
	}
	for i, k := range n.get("transition_key").list() {
		s.Key = append(s.Key, l.transitionKey(k.under("key %d", i)))
	}
	fallback := None
	for i, t := range n.get("transitions").list() {
		t = t.under("transition %d", i)
		c := l.transition(t, &s, states)
		if c.Default {
			if fallback != None {
				t.invalid("two default transitions")
			}
			fallback = len(s.Cases)
		}
		s.Cases = append(s.Cases, c)
	}
	if fallback != None { // it is last, wherever it is written
		c := s.Cases[fallback]
		s.Cases = append(append(s.Cases[:fallback:fallback], s.Cases[fallback+1:]...), c)
	}
	return s
}

func (l *loader) parserOp(n node) Stmt {
	n = n.object("op parameters", "")
	name, args, sc := n.get("op").str(), n.get("parameters").list(), scope{parser: true}
	n = n.under("parser operation %s", quote(name))
	want, ok := map[string]int{"extract": 1, "extract_VL": 2, "set": 2, "verify": 2, "advance": 1, "primitive": 1}[name]
	if !ok {
		n.unsupported("unknown operation")
	}
	if len(args) != want {
		n.invalid("%d parameters, want %d", len(args), want)
	}
	for i := range args {
		args[i] = args[i].parameter(n, i)
	}
	switch name {
	case "extract", "extract_VL":
		return l.extract(n, args, sc)
	case "verify":
		s := newStmt(StVerify, n)
		s.X, s.Y = l.condition(args[0], sc), l.exact(args[1], sc)
		return s
	case "advance":
		s := newStmt(StAdvance, n)
		s.X = l.exact(args[0], sc)
		return s
	case "primitive":
		return l.statement(args[0], sc, 0)
	}
	s := newStmt(StAssign, n)
	(&call{l: l, n: n, args: args, sc: sc}).assign(&s)
	return s
}

// extract loads an extract call, with the length of the varbit field as an optional second
// argument.
func (l *loader) extract(n node, args []node, sc scope) Stmt {
	arg := args[0].object("type value", "")
	s := newStmt(StExtract, n)
	h := 0
	switch t := arg.get("type").str(); t {
	case "regular":
		s.Head = l.realHeader(arg.get("value"))
		h = s.Head
	case "stack":
		s.Op, s.Stack = StExtractStack, l.stacks.named(arg.get("value"), "header stack")
		h = l.prog.Stacks[s.Stack].Headers[0]
	case "union_stack":
		part := arg.get("value").tuple(2, 2)
		s.Op, s.Stack = StExtractStack, l.unionStacks.named(part[0], "stack of header unions")
		s.Head = l.member(part[1], s.Stack)
		h = l.prog.Stacks[s.Stack].Headers[s.Head]
	default:
		n.unsupported("a %s", quote(t))
	}
	l.extractLength(n, args, sc, &s, h)
	return s
}

// extractLength loads the length of the varbit field of header h, if it has one: the second
// argument, or the header type's own expression.
func (l *loader) extractLength(n node, args []node, sc scope, s *Stmt, h int) {
	hdr := &l.prog.Headers[h]
	t := l.types[hdr.Type]
	switch {
	case t.varbit == None && len(args) == 1:
		return
	case t.varbit == None:
		n.invalid("header %s has no varbit field", quote(hdr.Name))
	case len(args) == 2:
		s.X = l.exact(args[1], sc)
	case t.length.isNull():
		n.invalid("header %s has a varbit field, but no length is given", quote(hdr.Name))
	case s.Op == StExtractStack:
		n.unsupported("a length_exp in a header stack")
	default:
		s.X, s.Own = l.exact(t.length, scope{parser: true, own: &h}), true
	}
	if s.Op == StExtract {
		s.Op = StExtractVar
	}
}

func (l *loader) transitionKey(n node) *Expr {
	e := l.data(n, scope{parser: true})
	if e.Op != OpField && e.Op != OpStackField && e.Op != OpLookahead {
		n.unsupported("not a field, the last element's field of a stack, or a lookahead")
	}
	return e
}

func (l *loader) transition(n node, s *State, states *registry) Case {
	n = n.object("next_state", "type value mask")
	c := Case{ValueSet: None, Next: Accept}
	if next := n.get("next_state"); !next.isNull() {
		c.Next = states.named(next, "parser state")
	}
	t := "hexstr" // older compilers wrote no type, and "default" instead of a value
	if n.has("type") {
		t = n.get("type").str()
	}
	if t == "hexstr" && n.get("value").v == "default" {
		t = "default"
	}
	switch t {
	case "default":
		c.Default = true
	case "parse_vset":
		l.useValueSet(n, s, &c)
	case "hexstr":
		c.Values = keyParts(n.get("value"), s.Key, true)
		if mask := n.get("mask"); !mask.isNull() {
			c.Masks = keyParts(mask, s.Key, false)
			for i, m := range c.Masks {
				c.Values[i].And(c.Values[i], m)
			}
		}
	default:
		n.unsupported("a transition of type %s", quote(t))
	}
	return c
}

// keyParts splits the bytes of a value or mask among the parts of the key, each of which has whole
// bytes. It rejects bits of a value beyond a part's width, which would never match.
func keyParts(n node, key []*Expr, value bool) []*big.Int {
	bytes := 0
	for _, k := range key {
		bytes += (k.Bits + 7) / 8
	}
	v := n.hex()
	if have := (len(n.digits()) + 1) / 2; bytes == 0 || have != bytes || v.Sign() < 0 {
		n.invalid("%s is not %d bytes, as the key is", n.kind(), bytes)
	}
	parts := make([]*big.Int, len(key))
	for i, k := range key {
		size := (k.Bits + 7) / 8
		bytes -= size
		p := new(big.Int).Rsh(v, uint(8*bytes))
		low := ones(k.Bits)
		if over := new(big.Int).And(p, new(big.Int).Xor(ones(8*size), low)); value && over.Sign() != 0 {
			n.invalid("%s does not fit in part %d of the key, of %d bits", n.kind(), i, k.Bits)
		}
		parts[i] = p.And(p, low)
	}
	return parts
}

func ones(bits int) *big.Int {
	v := new(big.Int).Lsh(big.NewInt(1), uint(bits))
	return v.Sub(v, big.NewInt(1))
}

// useValueSet records the widths of the key that is matched against the set. If they differ between
// uses, the set has one part for all.
func (l *loader) useValueSet(n node, s *State, c *Case) {
	if !n.get("mask").isNull() {
		n.unsupported("a mask on a value set")
	}
	c.ValueSet = l.valueSets.named(n.get("value"), "value set")
	v := &l.prog.ValueSets[c.ValueSet]
	var bits []int
	sum, have := 0, 0
	for _, k := range s.Key {
		bits = append(bits, k.Bits)
		sum += k.Bits
	}
	same := len(bits) == len(v.Bits)
	for i, b := range v.Bits {
		have += b
		same = same && b == bits[i]
	}
	if have != sum {
		n.invalid("value set %s has %d bits, the key has %d", quote(v.Name), have, sum)
	}
	if l.setsUsed[c.ValueSet] && !same {
		if bits = []int{sum}; sum > word {
			n.unsupported("value set %s of more than %d bits is matched against keys of different parts", quote(v.Name), word)
		}
	}
	l.setsUsed[c.ValueSet], v.Bits = true, bits
}

func (l *loader) loadDeparser(root node) {
	list := root.get("deparsers").list()
	if len(list) != 1 {
		root.get("deparsers").unsupported("%d deparsers, want one", len(list))
	}
	n := list[0].in("deparser").object("name id order", "primitives")
	if p := n.optional("primitives"); len(p) > 0 {
		s := p[0].object("op parameters", "")
		s.under("primitive %s", quote(s.get("op").str())).unsupported("a deparser emits only")
	}
	for _, h := range n.get("order").list() {
		l.prog.Deparser = append(l.prog.Deparser, l.realHeader(h))
	}
}
