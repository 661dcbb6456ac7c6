package program

import "math/big"

// binary are the operations of two operands.
var binary = map[string]Op{
	"+": OpAdd, "-": OpSub, "*": OpMul, "/": OpDiv, "%": OpMod, "<<": OpShl, ">>": OpShr,
	"&": OpAnd, "|": OpOr, "^": OpXor,
	"==": OpEq, "!=": OpNe, "<": OpLt, "<=": OpLe, ">": OpGt, ">=": OpGe,
	"and": OpLAnd, "or": OpLOr,
	"two_comp_mod": OpTwoComp, "sat_cast": OpSatCast, "usat_cast": OpUSatCast,
}

// unary are the operations of one operand.
var unary = map[string]Op{"~": OpNot, "not": OpLNot, "d2b": OpD2B, "b2d": OpB2D}

// operation reads an operator with its operands.
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
		return &Expr{Op: OpValid, Head: l.realHeader(l.typed(right, "header")), Bits: 1, Bool: true}
	case "last_stack_index":
		s := l.stacks.named(l.typed(right, "header_stack"), "header stack")
		return &Expr{Op: OpStackLast, Stack: s, Bits: 32, Signed: true} // -1 if it is empty
	case "size_stack":
		s := l.stacks.named(l.typed(right, "header_stack"), "header stack")
		return &Expr{Op: OpStackSize, Stack: s, Bits: 32}
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

// typed checks a pair of a type and a value for its type, and returns the value.
func (l *loader) typed(n node, want string) node {
	n = n.object("type value", "")
	if t := n.get("type").str(); t == "expression" {
		n.unsupported("a computed %s", want)
	} else if t != want {
		n.invalid("type %s, want %s", quote(t), want)
	}
	return n.get("value")
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

// leftOperand reads the left operand; a sign is written as + or - without one.
func (l *loader) leftOperand(n node, op Op, sc scope) *Expr {
	if left := n.get("left"); !left.isNull() || op != OpAdd && op != OpSub {
		return l.data(left, sc)
	}
	return constant(new(big.Int))
}

// checkConstant refuses constants on the right that the operation has no result for.
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

// choice reads cond ? left : right.
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

// accessField reads a field, by its index, of a header or of a stack's element.
func (l *loader) accessField(n node, sc scope) *Expr {
	left := n.get("left").object("type value", "")
	i := n.get("right").integer(0, 1<<20)
	switch t := left.get("type").str(); t {
	case "header":
		h := l.headers.named(left.get("value"), "header")
		if i >= len(l.prog.Headers[h].Fields) {
			n.invalid("field %d of a header with %d", i, len(l.prog.Headers[h].Fields))
		}
		f := l.prog.Headers[h].Fields[i]
		if f.Var {
			n.unsupported("varbit field %s as a number", quote(f.Name))
		}
		return &Expr{Op: OpField, Field: FieldRef{h, i}, Bits: f.Bits, Signed: f.Signed}
	case "expression":
		deref := left.get("value").object("op left right", "")
		if op := deref.get("op").str(); op != "dereference_header_stack" {
			n.unsupported("a header by operation %s", quote(op))
		}
		s := l.stacks.named(l.typed(deref.get("left"), "header_stack"), "header stack")
		index := l.data(deref.get("right"), sc)
		return l.element(n, &Expr{Op: OpStackElem, Stack: s, Index: i, Left: index})
	default:
		n.unsupported("a field of an operand of type %s", quote(t))
	}
	return nil
}
