package program

import (
	"fmt"
	"slices"
	"strings"
)

// call is a call of a primitive while it is loaded.
type call struct {
	l    *loader
	n    node // the statement
	args []node
	sc   scope
	body int // number of statements in the enclosing action
}

// primitive says how to convert a primitive's arguments to a statement's.
type primitive struct {
	op     StmtOp
	args   int
	parser bool // may be called in a parser state
	load   func(c *call, s *Stmt)
}

var primitives = map[string]primitive{
	"assign":                              {StAssign, 2, true, (*call).assign},
	"assign_VL":                           {StAssignVar, 2, true, (*call).assignVar},
	"assign_header":                       {StAssignHeader, 2, true, (*call).assignHeader},
	"assign_header_stack":                 {StAssignStack, 2, true, (*call).assignStack},
	"assign_union":                        {StAssignStack, 2, true, (*call).assignUnion},
	"assign_union_stack":                  {StAssignStack, 2, true, (*call).assignStack},
	"add_header":                          {StSetValid, 1, true, (*call).validity},
	"remove_header":                       {StSetInvalid, 1, true, (*call).validity},
	"push":                                {StPush, 2, true, (*call).shiftStack},
	"pop":                                 {StPop, 2, true, (*call).shiftStack},
	"mark_to_drop":                        {StMarkToDrop, 1, false, (*call).markToDrop},
	"modify_field_with_hash_based_offset": {StHash, 4, true, (*call).hash},
	"modify_field_rng_uniform":            {StRandom, 3, true, (*call).random},
	"register_read":                       {StRegisterRead, 3, true, (*call).registerRead},
	"register_write":                      {StRegisterWrite, 3, true, (*call).registerWrite},
	"count":                               {StCount, 2, true, (*call).count},
	"execute_meter":                       {StMeter, 3, true, (*call).meter},
	"generate_digest":                     {StDigest, 2, false, (*call).digest},
	"clone_ingress_pkt_to_egress":         {StCloneIngress, 2, false, (*call).clone},
	"clone_egress_pkt_to_egress":          {StCloneEgress, 2, false, (*call).clone},
	"resubmit":                            {StResubmit, 1, false, (*call).again},
	"recirculate":                         {StRecirculate, 1, false, (*call).again},
	"truncate":                            {StTruncate, 1, false, (*call).truncate},
	"_jump":                               {StJump, 1, false, (*call).jump},
	"_jump_if_zero":                       {StJumpIfZero, 2, false, (*call).jumpIfZero},
	"exit":                                {StExit, 0, false, func(*call, *Stmt) {}},
	"assert":                              {StAssert, 1, true, (*call).assert},
	"assume":                              {StAssert, 1, true, (*call).assert},
	"log_msg":                             {StLog, 2, true, (*call).log},

	// Primitives of P4_14, which older compilers wrote.
	"no_op":               {StNop, 0, true, func(*call, *Stmt) {}},
	"drop":                {StMarkToDrop, 0, false, (*call).drop},
	"copy_header":         {StAssignHeader, 2, true, (*call).assignHeader},
	"modify_field":        {StAssign, 2, true, (*call).assign},
	"add_to_field":        {StAssign, 2, true, arithmetic(OpAdd)},
	"subtract_from_field": {StAssign, 2, true, arithmetic(OpSub)},
	"add":                 {StAssign, 3, true, arithmetic(OpAdd)},
	"subtract":            {StAssign, 3, true, arithmetic(OpSub)},
	"bit_and":             {StAssign, 3, true, arithmetic(OpAnd)},
	"bit_or":              {StAssign, 3, true, arithmetic(OpOr)},
	"bit_xor":             {StAssign, 3, true, arithmetic(OpXor)},
	"shift_left":          {StAssign, 3, true, arithmetic(OpShl)},
	"shift_right":         {StAssign, 3, true, arithmetic(OpShr)},
}

// statement loads a call of a primitive in a body of several.
func (l *loader) statement(n node, sc scope, body int) Stmt {
	n = n.object("op parameters", "")
	name := n.get("op").str()
	n = n.under("primitive %s", quote(name))
	p, ok := primitives[name]
	switch {
	case !ok:
		n.unsupported("unknown primitive")
	case sc.parser && !p.parser:
		n.unsupported("not in a parser")
	}
	args := n.get("parameters").list()
	if len(args) != p.args {
		n.invalid("%d parameters, want %d", len(args), p.args)
	}
	for i := range args {
		args[i] = args[i].parameter(n, i)
	}
	return (&call{l, n, args, sc, body}).read(p)
}

// read converts the call to a statement. If a header is a stack element with a computed index, the
// result has one statement for each element.
func (c *call) read(p primitive) Stmt {
	for i, arg := range c.args {
		if p.op != StAssignHeader && p.op != StSetValid && p.op != StSetInvalid || arg.object("type value", "").get("type").v != "expression" {
			continue
		}
		s, each := newStmt(StPick, c.n), *c
		s.Stack, s.X = c.l.dereference(arg.get("value"), c.sc)
		for _, h := range c.l.prog.Stacks[s.Stack].Headers {
			if c.l.compared++; c.l.compared > maxCompared {
				c.n.unsupported("computed indices of more than %d elements together", maxCompared)
			}
			each.args = slices.Clone(c.args)
			each.args[i].v = &object{[]string{"type", "value"}, map[string]any{"type": "header", "value": c.l.prog.Headers[h].Name}}
			s.Each = append(s.Each, each.read(p))
		}
		return s
	}
	s := newStmt(p.op, c.n)
	p.load(c, &s)
	return s
}

// parameter returns n as parameter i of a call.
func (n node) parameter(call node, i int) node {
	n.source, n.detail, n.member = call.source, call.detail, fmt.Sprintf("parameter %d", i)
	return n
}

func newStmt(op StmtOp, n node) Stmt {
	return Stmt{Op: op, Field: NoField, Src: NoField, FieldList: None, Source: n.source}
}

func (c *call) data(i int) *Expr { return c.l.exact(c.args[i], c.sc) }

func (c *call) typed(i int, want string) node { return c.l.typed(c.args[i], want) }

func (c *call) header(i int) int { return c.l.realHeader(c.typed(i, "header")) }

func (c *call) stack(i int) int { return c.l.stack(c.args[i]) }

func (c *call) assign(s *Stmt) {
	s.Dst = c.l.destination(c.args[0], c.sc)
	s.X = c.l.truncated(c.args[1], c.sc, s.Dst.Bits)
}

func (c *call) assignVar(s *Stmt) {
	s.Field, s.Src = c.l.varbit(c.typed(0, "field")), c.l.varbit(c.typed(1, "field"))
	if have, want := c.l.fieldAt(s.Field).Bits, c.l.fieldAt(s.Src).Bits; have < want {
		c.n.invalid("a varbit<%d> does not fit in a varbit<%d>", want, have)
	}
}

func (c *call) assignHeader(s *Stmt) {
	s.Head, s.Head2 = c.header(0), c.header(1)
	h := c.l.prog.Headers
	if h[s.Head].Type != h[s.Head2].Type {
		c.n.invalid("headers %s and %s differ in type", quote(h[s.Head].Name), quote(h[s.Head2].Name))
	}
}

func (c *call) assignStack(s *Stmt) {
	s.Stack, s.Stack2 = c.stack(0), c.stack(1)
	c.l.alike(c.n, s.Stack, s.Stack2)
}

func (c *call) assignUnion(s *Stmt) {
	s.Stack, s.Stack2 = c.l.union(c.args[0]), c.l.union(c.args[1])
	c.l.alike(c.n, s.Stack, s.Stack2)
}

func (c *call) validity(s *Stmt) { s.Head = c.header(0) }

func (c *call) shiftStack(s *Stmt) {
	s.Stack = c.stack(0)
	s.N = c.typed(1, "hexstr").small(maxHeaders)
}

func (c *call) drop(s *Stmt) {
	s.Field, s.Src = c.l.prog.Std[StdEgressSpec], c.l.prog.Std[StdMcastGrp]
}

// markToDrop may get a copy of the standard metadata, which is written back later. Its fields are
// found by name.
func (c *call) markToDrop(s *Stmt) {
	h := c.l.headers.named(c.typed(0, "header"), "header")
	if h == c.l.prog.Std[StdEgressSpec].Header {
		c.drop(s)
		return
	}
	hdr := &c.l.prog.Headers[h]
	for i, f := range hdr.Fields {
		switch {
		case f.Bits > word || f.Var:
		case f.Name == "egress_spec":
			s.Field = FieldRef{h, i}
		case f.Name == "mcast_grp":
			s.Src = FieldRef{h, i}
		}
	}
	if s.Field == NoField {
		c.n.invalid("%s has no egress_spec, so that it is no standard metadata", quote(hdr.Name))
	}
}

// arithmetic makes the assignment of a sum or similar of the last two arguments; the first of them
// may be the destination.
func arithmetic(op Op) func(c *call, s *Stmt) {
	return func(c *call, s *Stmt) {
		s.Dst = c.l.destination(c.args[0], c.sc)
		last := len(c.args) - 1
		s.X = &Expr{Op: op, Left: c.l.data(c.args[last-1], c.sc), Right: c.l.data(c.args[last], c.sc)}
		s.X.checkConstant(c.n)
		s.X.bound()
		s.X = s.X.reduced(s.Dst.Bits)
	}
}

func (c *call) hash(s *Stmt) {
	s.Dst = c.l.destination(c.args[0], c.sc)
	s.X = c.data(1)
	s.Calc = c.l.calcs.named(c.typed(2, "calculation"), "calculation")
	s.Y = c.data(3)
}

func (c *call) random(s *Stmt) {
	s.Dst = c.l.destination(c.args[0], c.sc)
	s.X, s.Y = c.data(1), c.data(2)
}

func (c *call) register(i int) int {
	return c.l.registers.named(c.typed(i, "register_array"), "register")
}

func (c *call) registerRead(s *Stmt) {
	s.Dst = c.l.destination(c.args[0], c.sc)
	s.Register, s.X = c.register(1), c.data(2)
}

func (c *call) registerWrite(s *Stmt) {
	s.Register, s.X = c.register(0), c.data(1)
	s.Y = c.l.truncated(c.args[2], c.sc, c.l.prog.Registers[s.Register].Bits)
}

func (c *call) count(s *Stmt) {
	s.Counter = c.l.counters.named(c.typed(0, "counter_array"), "counter")
	if ctr := c.l.prog.Counters[s.Counter]; ctr.Table != None {
		c.n.invalid("direct counter %s is called", quote(ctr.Name))
	}
	s.X = c.data(1)
}

func (c *call) meter(s *Stmt) {
	s.Meter = c.l.meters.named(c.typed(0, "meter_array"), "meter")
	if m := c.l.prog.Meters[s.Meter]; m.Target != NoField {
		c.n.invalid("direct meter %s is called", quote(m.Name))
	}
	s.X = c.data(1)
	s.Dst = c.l.destination(c.args[2], c.sc)
}

func (c *call) digest(s *Stmt) {
	c.data(0) // the receiver, which has no meaning in v1model
	n := c.typed(1, "hexstr")
	s.Digest = c.l.digests.numbered(n, "digest", n.small(maxID))
}

// fieldList loads the list of preserved fields; 0 means none.
func (c *call) fieldList(i int) int {
	n := c.typed(i, "hexstr")
	id := n.small(maxID)
	if _, ok := c.l.fieldLists.byID[id]; id == 0 && !ok {
		return None
	}
	return c.l.fieldLists.numbered(n, "field list", id)
}

func (c *call) clone(s *Stmt) { s.X, s.FieldList = c.data(0), c.fieldList(1) }

func (c *call) again(s *Stmt) { s.FieldList = c.fieldList(0) }

func (c *call) truncate(s *Stmt) { s.X = c.data(0) }

func (c *call) target(i int) int {
	t := c.typed(i, "hexstr").small(maxID)
	if t > c.body {
		c.n.invalid("a jump to statement %d of %d", t, c.body)
	}
	return t
}

func (c *call) jump(s *Stmt) { s.N = c.target(0) }

func (c *call) jumpIfZero(s *Stmt) { s.X, s.N = c.l.whole(c.args[0], c.sc), c.target(1) }

func (c *call) assert(s *Stmt) { s.X = c.l.whole(c.args[0], c.sc) }

func (c *call) log(s *Stmt) {
	s.Text = c.typed(0, "string").str()
	v := c.typed(1, "parameters_vector")
	if o, ok := v.v.(*object); !ok || len(o.names) > 0 { // p4c writes an absent one as {}
		for _, e := range v.list() {
			s.Exprs = append(s.Exprs, c.l.whole(e, c.sc))
		}
	}
	if n := strings.Count(s.Text, "{}"); n != len(s.Exprs) {
		c.n.invalid("%d times {} in the text, but %d values", n, len(s.Exprs))
	}
}

func (l *loader) loadActions(root node) {
	l.declared(root, "actions", "action", "runtime_data primitives", "", &l.actions, func(i int, n node, name string) {
		a := Action{Name: name, Source: n.source}
		names := map[string]bool{}
		for _, d := range n.get("runtime_data").list() {
			d = d.object("name bitwidth", "")
			p := Param{d.get("name").name(), d.get("bitwidth").integer(1, maxBits)}
			if names[p.Name] {
				n.invalid("two parameters have the name %s", quote(p.Name))
			}
			names[p.Name] = true
			a.Params = append(a.Params, p)
		}
		body := n.get("primitives").list()
		for _, s := range body {
			a.Body = append(a.Body, l.statement(s, scope{params: a.Params}, len(body)))
		}
		l.prog.Actions = append(l.prog.Actions, a)
	})
}
