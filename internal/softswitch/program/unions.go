package program

import "slices"

// unionType is a type of header unions: its members' names and types.
type unionType struct {
	names map[string]int
	types []string
}

// loadUnions loads header unions and stacks of them.
func (l *loader) loadUnions(root node) {
	l.unionTypes, l.unionOf = map[string]*unionType{}, map[int]*unionType{}
	ids := registry{}
	l.declared(root, "header_union_types", "header union type", "headers", "", &ids, func(_ int, n node, name string) {
		t := &unionType{names: map[string]int{}}
		for i, h := range n.get("headers").list() {
			part := h.tuple(2, 2)
			member, typ := part[0].name(), part[1].str()
			if _, ok := t.names[member]; ok || l.types[typ] == nil {
				n.invalid("member %s occurs twice, or there is no header type %s", quote(member), quote(typ))
			}
			t.names[member] = i
			t.types = append(t.types, typ)
		}
		if len(t.types) == 0 || len(t.types) > maxMembers {
			n.unsupported("%d members, which is none, or more than %d", len(t.types), maxMembers)
		}
		l.unionTypes[name] = t
	})
	l.each(root, "header_unions", "header union", func(_ int, n node) { l.loadUnion(n) })
	l.each(root, "header_union_stacks", "stack of header unions", func(_ int, n node) { l.loadUnionStack(n) })
}

// unionType returns the type of the union, or of the stack of unions, that n describes.
func (l *loader) unionType(n node) *unionType {
	typ := n.get("union_type").str()
	t := l.unionTypes[typ]
	if t == nil {
		n.invalid("no header union type has the name %s", quote(typ))
	}
	l.unionOf[len(l.prog.Stacks)] = t
	return t
}

func (l *loader) loadUnion(n node) {
	n = n.object("name id union_type header_ids", "")
	index := len(l.prog.Stacks)
	t, u := l.unionType(n), Stack{Name: l.unions.add(n, index)}
	ids := n.get("header_ids").list()
	if u.Members = len(ids); u.Members != len(t.types) {
		n.invalid("%d headers, but its type has %d", len(ids), len(t.types))
	}
	for i, id := range ids {
		h := l.headers.numbered(n, "header", id.integer(0, maxID))
		hdr := &l.prog.Headers[h]
		if hdr.Stack != None || hdr.Metadata || hdr.Type != t.types[i] {
			n.invalid("header %s cannot be member %d", quote(hdr.Name), i)
		}
		hdr.Stack = index
		u.Headers = append(u.Headers, h)
	}
	l.prog.Stacks = append(l.prog.Stacks, u)
}

func (l *loader) loadUnionStack(n node) {
	n = n.object("name id union_type header_union_ids", "size")
	t := l.unionType(n)
	s := Stack{Name: l.unionStacks.add(n, len(l.prog.Stacks)), Members: len(t.types)}
	ofType := func(h int, typ string) bool { return l.prog.Headers[h].Type == typ }
	size := 0
	for _, id := range n.get("header_union_ids").list() {
		u := l.unions.numbered(n, "header union", id.integer(0, maxID))
		headers := l.prog.Stacks[u].Headers
		if l.prog.Headers[headers[0]].Stack != u || !slices.EqualFunc(headers, t.types, ofType) {
			n.invalid("header union %s cannot be an element", quote(l.prog.Stacks[u].Name))
		}
		size++
		for _, h := range headers {
			l.prog.Headers[h].Stack = len(l.prog.Stacks)
		}
		s.Headers = append(s.Headers, headers...)
	}
	if n.has("size") && n.get("size").integer(1, maxHeaders) != size || size == 0 {
		n.invalid("another size than its %d elements", size)
	}
	l.prog.Stacks = append(l.prog.Stacks, s)
}

// member returns the index of the named member of a stack's unions.
func (l *loader) member(n node, stack int) int {
	i, ok := l.unionOf[stack].names[n.str()]
	if !ok {
		n.invalid("a union in %s has no member %s", quote(l.prog.Stacks[stack].Name), quote(n.str()))
	}
	return i
}

// stack loads the name of a header stack, or of a stack of header unions.
func (l *loader) stack(n node) int {
	if n.has("type") && n.get("type").v == "header_union_stack" {
		return l.unionStacks.named(l.typed(n, "header_union_stack"), "stack of header unions")
	}
	return l.stacks.named(l.typed(n, "header_stack"), "header stack")
}

func (l *loader) union(n node) int {
	return l.unions.named(l.typed(n, "header_union"), "header union")
}

// alike rejects two stacks or unions that cannot be assigned to each other.
func (l *loader) alike(n node, a, b int) {
	s, t := &l.prog.Stacks[a], &l.prog.Stacks[b]
	same := func(x, y int) bool { return l.prog.Headers[x].Type == l.prog.Headers[y].Type }
	if s.Members != t.Members || !slices.EqualFunc(s.Headers, t.Headers, same) {
		n.invalid("header stacks or unions %s and %s differ in type or size", quote(s.Name), quote(t.Name))
	}
}

// logical combines two booleans.
func logical(op Op, left, right *Expr) *Expr {
	if left == nil {
		return right
	}
	return &Expr{Op: op, Left: left, Right: right, Bits: 1, Bool: true}
}

func valid(h int) *Expr { return &Expr{Op: OpValid, Head: h, Bits: 1, Bool: true} }

// validUnion returns the condition that one of a union's headers is valid.
func (l *loader) validUnion(u int) (e *Expr) {
	for _, h := range l.prog.Stacks[u].Headers {
		e = logical(OpLOr, e, valid(h))
	}
	return e
}

// compound loads an equality comparison of headers, header unions or varbit fields; nil if it
// compares something else.
func (l *loader) compound(n node) (e *Expr) {
	left, right := n.get("left"), n.get("right")
	if !left.has("type") {
		return nil
	}
	switch left.get("type").v {
	case "header":
		return l.sameHeaders(n, l.realHeader(l.typed(left, "header")), l.realHeader(l.typed(right, "header")))
	case "header_union":
		a, b := l.union(left), l.union(right)
		l.alike(n, a, b)
		for i, h := range l.prog.Stacks[a].Headers {
			e = logical(OpLOr, e, l.sameHeaders(n, h, l.prog.Stacks[b].Headers[i]))
		}
	case "field":
		if r := l.field(l.typed(left, "field")); l.fieldAt(r).Var {
			return l.sameFields(r, l.varbit(l.typed(right, "field")))
		}
	}
	return e
}

// sameHeaders returns the condition that two headers are both valid, and equal in all fields.
func (l *loader) sameHeaders(n node, a, b int) *Expr {
	x, y := &l.prog.Headers[a], &l.prog.Headers[b]
	if l.compared += 1 + len(x.Fields); l.compared > maxCompared {
		n.unsupported("comparisons of headers with more than %d fields together", maxCompared)
	}
	if x.Type != y.Type {
		n.invalid("headers %s and %s differ in type", quote(x.Name), quote(y.Name))
	}
	e := logical(OpLAnd, valid(a), valid(b))
	for i := range x.Fields {
		e = logical(OpLAnd, e, l.sameFields(FieldRef{a, i}, FieldRef{b, i}))
	}
	return e
}

// sameFields returns the condition that two fields of the same type are equal.
func (l *loader) sameFields(a, b FieldRef) *Expr {
	op := OpEq
	if l.fieldAt(a).Var {
		op = OpEqVar
	}
	return &Expr{Op: op, Left: l.read(a), Right: l.read(b), Bits: 1, Bool: true}
}
