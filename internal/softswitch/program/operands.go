package program

import "math/big"

// maxExpr limits the nesting of expressions, and so the recursion of their readers.
const maxExpr = 500

// scope is what an expression may refer to in addition to fields.
type scope struct {
	parser bool    // lookahead, and the last element of a stack
	own    *int    // the header whose length the expression gives
	params []Param // of the enclosing action
	depth  int     // nesting depth so far
}

// deeper returns the scope of n's operands.
func (sc scope) deeper(n node) scope {
	if sc.depth++; sc.depth > maxExpr {
		n.unsupported("an expression of more than %d levels", maxExpr)
	}
	return sc
}

// data loads an expression with a numeric result.
func (l *loader) data(n node, sc scope) *Expr {
	e := l.expr(n, sc)
	if e.Bool {
		n.invalid("a boolean where a number is wanted")
	}
	return e
}

// boolean loads an expression with a boolean result.
func (l *loader) boolean(n node, sc scope) *Expr {
	e := l.expr(n, sc)
	if !e.Bool {
		n.invalid("a number where a boolean is wanted")
	}
	return e
}

// condition loads a complete boolean expression.
func (l *loader) condition(n node, sc scope) *Expr {
	return l.boolean(n, sc).reduced(1)
}

// exact loads a complete expression whose value fits in 64 bits.
func (l *loader) exact(n node, sc scope) *Expr {
	e := l.data(n, sc)
	if !e.exact() {
		n.unsupported("an intermediate value that needs more than %d bits", word)
	}
	return e
}

// whole loads a complete expression of which all bits matter.
func (l *loader) whole(n node, sc scope) *Expr {
	e := l.data(n, sc)
	switch {
	case e.whole():
		return e
	case e.Signed || e.Bits == 0:
		n.unsupported("a value of unknown width, or a signed one of more than %d bits", word)
	}
	return e.reduced(e.Bits)
}

// truncated loads a complete expression of which only the lowest bits matter.
func (l *loader) truncated(n node, sc scope, bits int) *Expr {
	return l.data(n, sc).reduced(bits)
}

// destination loads the destination of an assignment.
func (l *loader) destination(n node, sc scope) *Expr {
	e := l.data(n, sc)
	switch {
	case e.Op == OpField && e.Field.Field == Valid:
		n.invalid("a header's validity is written by setValid and setInvalid only")
	case e.Op != OpField && e.Op != OpStackElem && e.Op != OpStackField:
		n.invalid("it cannot be assigned to")
	}
	return e
}

// expr loads an operand: a pair of a type and a value.
func (l *loader) expr(n node, sc scope) *Expr {
	n = n.object("type value", "")
	sc = sc.deeper(n)
	v := n.get("value")
	switch t := n.get("type").str(); t {
	case "expression":
		if v.has("op") {
			return l.operation(v, sc)
		}
		return l.expr(v, sc)
	case "field":
		return l.read(l.readable(v))
	case "hexstr":
		return constant(v.hex())
	case "bool":
		return truth(v.boolean())
	case "local", "runtime_data":
		if sc.own != nil {
			return l.ownField(v, *sc.own)
		}
		return parameter(v, sc)
	case "lookahead":
		return lookahead(v, sc)
	case "stack_field", "union_stack_field":
		return l.stackField(v, sc, t == "union_stack_field")
	case "header", "header_stack":
		n.unsupported("a %s as a value", t)
	default:
		n.unsupported("an operand of type %s", quote(t))
	}
	return nil
}

// constant returns an expression for v with the tightest bound.
func constant(v *big.Int) *Expr {
	if v.Sign() >= 0 {
		return &Expr{Op: OpConst, Const: v, Bits: max(v.BitLen(), 1)}
	}
	return &Expr{Op: OpConst, Const: v, Bits: new(big.Int).Not(v).BitLen() + 1, Signed: true}
}

func truth(b bool) *Expr {
	v := big.NewInt(0)
	if b {
		v.SetInt64(1)
	}
	return &Expr{Op: OpBool, Const: v, Bits: 1, Bool: true}
}

func parameter(n node, sc scope) *Expr {
	i := n.integer(0, 1<<30)
	if i >= len(sc.params) {
		n.invalid("parameter %d, but there are %d", i, len(sc.params))
	}
	return &Expr{Op: OpParam, Index: i, Bits: sc.params[i].Bits}
}

func lookahead(n node, sc scope) *Expr {
	if !sc.parser {
		n.invalid("lookahead outside of the parser")
	}
	part := n.tuple(2, 2)
	return &Expr{Op: OpLookahead, Offset: part[0].integer(0, maxVarbit), Bits: part[1].integer(1, maxBits)}
}

func (l *loader) stackField(n node, sc scope, union bool) *Expr {
	if !sc.parser {
		n.unsupported("the last element of a header stack outside of the parser")
	}
	e := &Expr{Op: OpStackField}
	var part []node
	if union {
		part = n.tuple(3, 3)
		e.Stack = l.unionStacks.named(part[0], "stack of header unions")
		e.Head = l.member(part[1], e.Stack)
	} else {
		part = n.tuple(2, 2)
		e.Stack = l.stacks.named(part[0], "header stack")
	}
	hdr, name := &l.prog.Headers[l.prog.Stacks[e.Stack].Headers[e.Head]], part[len(part)-1].str()
	i, ok := l.types[hdr.Type].index[name]
	if !ok {
		n.unsupported("%s of the last element of header stack %s", quote(name), quote(part[0].str()))
	}
	e.Index = i
	return l.element(n, e)
}

// ownField loads a field of header h by its index, as used in a length_exp.
func (l *loader) ownField(n node, h int) *Expr {
	i, hdr := n.integer(0, 1<<20), &l.prog.Headers[h]
	if i >= len(hdr.Fields) || hdr.Fields[i].Var {
		n.invalid("field %d of header %s", i, quote(hdr.Name))
	}
	return l.read(FieldRef{h, i})
}

// element completes an expression for field e.Index of an element of e.Stack.
func (l *loader) element(n node, e *Expr) *Expr {
	f := l.fieldOf(n, l.prog.Stacks[e.Stack].Headers[e.Head], e.Index)
	e.Bits, e.Signed = f.Bits, f.Signed
	return e
}

// binary maps the binary operators.
var binary = map[string]Op{
	"+": OpAdd, "-": OpSub, "*": OpMul, "/": OpDiv, "%": OpMod, "<<": OpShl, ">>": OpShr,
	"&": OpAnd, "|": OpOr, "^": OpXor,
	"==": OpEq, "!=": OpNe, "<": OpLt, "<=": OpLe, ">": OpGt, ">=": OpGe,
	"and": OpLAnd, "or": OpLOr,
	"two_comp_mod": OpTwoComp, "sat_cast": OpSatCast, "usat_cast": OpUSatCast,
}

// unary maps the unary operators.
var unary = map[string]Op{"~": OpNot, "not": OpLNot, "d2b": OpD2B, "b2d": OpB2D}

// operation loads an operator with its operands.
func (l *loader) operation(n node, sc scope) *Expr {
	n = n.object("op left right", "cond")
	name := n.get("op").str()
	n = n.under("operation %s", quote(name))
	left, right := n.get("left"), n.get("right")
	if n.has("cond") != (name == "?") {
		n.invalid("cond belongs to the operation %q only", "?")
	}
	switch name {
	case "?":
		return l.choice(n, sc)
	case "access_field":
		return l.accessField(n, sc)
	case "valid":
		return valid(l.realHeader(l.typed(right, "header")))
	case "valid_union":
		return l.validUnion(l.union(right))
	case "last_stack_index":
		return &Expr{Op: OpStackLast, Stack: l.stack(right), Bits: 32, Signed: true} // -1 if the stack is empty
	case "size_stack":
		return &Expr{Op: OpStackSize, Stack: l.stack(right), Bits: 32}
	}
	if op, ok := unary[name]; ok {
		if !left.isNull() {
			n.invalid("two operands")
		}
		return l.unary(op, right, sc)
	}
	op, ok := binary[name]
	if !ok {
		n.unsupported("unknown operation")
	}
	return l.binary(n, op, sc)
}

func (l *loader) unary(op Op, n node, sc scope) *Expr {
	e := &Expr{Op: op, Bits: 1, Bool: op != OpB2D && op != OpNot}
	switch op {
	case OpNot:
		e.Left = l.data(n, sc)
		e.bound()
	case OpD2B:
		e.Left = l.data(n, sc)
	case OpLNot, OpB2D:
		e.Left = l.boolean(n, sc)
	}
	return e
}

func (l *loader) binary(n node, op Op, sc scope) *Expr {
	e := &Expr{Op: op}
	switch op {
	case OpLAnd, OpLOr:
		e.Left, e.Right = l.boolean(n.get("left"), sc), l.boolean(n.get("right"), sc)
		e.Bits, e.Bool = 1, true
	case OpEq, OpNe:
		if same := l.compound(n); same != nil && op == OpEq {
			return same
		} else if same != nil {
			return &Expr{Op: OpLNot, Left: same, Bits: 1, Bool: true}
		}
		e.Left, e.Right = l.expr(n.get("left"), sc), l.expr(n.get("right"), sc)
		if e.Left.Bool != e.Right.Bool {
			n.invalid("a comparison of a number and a boolean")
		}
		e.Bits, e.Bool = 1, true
	case OpLt, OpLe, OpGt, OpGe:
		e.Left, e.Right = l.data(n.get("left"), sc), l.data(n.get("right"), sc)
		e.Bits, e.Bool = 1, true
	default:
		e.Left, e.Right = l.leftOperand(n, op, sc), l.data(n.get("right"), sc)
		e.checkConstant(n)
		e.bound()
	}
	return e
}

// leftOperand loads the left operand; a sign is a + or - without one.
func (l *loader) leftOperand(n node, op Op, sc scope) *Expr {
	if left := n.get("left"); !left.isNull() || op != OpAdd && op != OpSub {
		return l.data(left, sc)
	}
	return constant(new(big.Int))
}

// checkConstant rejects constant right operands for which the operation is undefined.
func (e *Expr) checkConstant(n node) {
	r := e.Right
	switch e.Op {
	case OpTwoComp, OpSatCast, OpUSatCast:
		if r.Op != OpConst || r.Const.Sign() <= 0 || r.Const.Cmp(big.NewInt(maxBits)) > 0 {
			n.invalid("the width is not a constant from 1 to %d", maxBits)
		}
	case OpDiv, OpMod:
		if r.Op == OpConst && r.Const.Sign() <= 0 {
			n.invalid("division by %v", r.Const)
		}
	case OpShl, OpShr:
		if r.Op == OpConst && (r.Const.Sign() < 0 || r.Const.Cmp(big.NewInt(maxBits)) > 0) {
			n.unsupported("a shift by more than %d bits, or less than none", maxBits)
		}
	}
}

// choice loads cond ? left : right.
func (l *loader) choice(n node, sc scope) *Expr {
	e := &Expr{Op: OpCond, Cond: l.boolean(n.get("cond"), sc)}
	e.Left, e.Right = l.expr(n.get("left"), sc), l.expr(n.get("right"), sc)
	if e.Left.Bool != e.Right.Bool {
		n.invalid("a number or a boolean, depending on the condition")
	}
	e.Bool = e.Left.Bool
	e.bound()
	return e
}

// accessField loads a field, by its index, of a header or of a stack's element.
func (l *loader) accessField(n node, sc scope) *Expr {
	left := n.get("left").object("type value", "")
	i := n.get("right").integer(0, 1<<20)
	switch t := left.get("type").str(); t {
	case "header":
		h := l.headers.named(left.get("value"), "header")
		l.fieldOf(n, h, i)
		return l.read(FieldRef{h, i})
	case "expression":
		s, index := l.dereference(left.get("value"), sc)
		return l.element(n, &Expr{Op: OpStackElem, Stack: s, Index: i, Left: index})
	default:
		n.unsupported("a field of an operand of type %s", quote(t))
	}
	return nil
}

// dereference loads an element of a stack by its index.
func (l *loader) dereference(n node, sc scope) (stack int, index *Expr) {
	if n.has("type") { // p4c nests some twice
		n = n.object("type value", "").get("value")
	}
	n = n.object("op left right", "")
	if op := n.get("op").str(); op != "dereference_header_stack" {
		n.unsupported("a header by operation %s", quote(op))
	}
	return l.stacks.named(l.typed(n.get("left"), "header_stack"), "header stack"), l.exact(n.get("right"), sc)
}
