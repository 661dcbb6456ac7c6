package program

import "math/big"

// maxExpr bounds how deep expressions nest, and so the recursion of their readers.
const maxExpr = 500

// scope is what an expression may refer to besides fields.
type scope struct {
	parser bool    // the packet ahead, and the last element of a stack
	params []Param // of the enclosing action
	depth  int     // of nested expressions so far
}

// deeper returns the scope of n's operands.
func (sc scope) deeper(n node) scope {
	if sc.depth++; sc.depth > maxExpr {
		n.unsupported("an expression of more than %d levels", maxExpr)
	}
	return sc
}

// data reads an expression whose result is a number.
func (l *loader) data(n node, sc scope) *Expr {
	e := l.expr(n, sc)
	if e.Bool {
		n.invalid("a boolean where a number is wanted")
	}
	return e
}

// boolean reads an expression whose result is a boolean.
func (l *loader) boolean(n node, sc scope) *Expr {
	e := l.expr(n, sc)
	if !e.Bool {
		n.invalid("a number where a boolean is wanted")
	}
	return e
}

// condition reads a complete boolean expression.
func (l *loader) condition(n node, sc scope) *Expr {
	e := l.boolean(n, sc)
	n.need(e, 1)
	return e
}

// exact reads a complete expression whose value fits in 64 bits.
func (l *loader) exact(n node, sc scope) *Expr {
	e := l.data(n, sc)
	n.exact(e)
	return e
}

// whole reads a complete expression of which all bits count.
func (l *loader) whole(n node, sc scope) *Expr {
	e := l.data(n, sc)
	n.whole(e)
	return e
}

// truncated reads a complete expression of which the lowest bits count.
func (l *loader) truncated(n node, sc scope, bits int) *Expr {
	e := l.data(n, sc)
	n.need(e, bits)
	return e
}

// destination reads what an assignment writes to.
func (l *loader) destination(n node, sc scope) *Expr {
	e := l.data(n, sc)
	switch {
	case e.Op == OpField && e.Field.Field == Valid:
		n.invalid("a header's validity is written by setValid and setInvalid only")
	case e.Op != OpField && e.Op != OpStackElem && e.Op != OpStackField:
		n.invalid("it cannot be assigned to")
	case e.Op == OpStackElem:
		n.need(e, e.Bits)
	}
	return e
}

// expr reads an operand: a pair of a type and a value.
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
		r := l.readable(v)
		f := l.fieldAt(r)
		return &Expr{Op: OpField, Field: r, Bits: f.Bits, Signed: f.Signed}
	case "hexstr":
		return constant(v.hex())
	case "bool":
		return truth(v.boolean())
	case "local", "runtime_data":
		return parameter(v, sc)
	case "lookahead":
		return lookahead(v, sc)
	case "stack_field":
		return l.stackField(v, sc)
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

func (l *loader) stackField(n node, sc scope) *Expr {
	if !sc.parser {
		n.unsupported("the last element of a header stack outside of the parser")
	}
	part := n.tuple(2, 2)
	s := l.stacks.named(part[0], "header stack")
	hdr := &l.prog.Headers[l.prog.Stacks[s].Headers[0]]
	i, ok := l.types[hdr.Type].index[part[1].str()]
	if !ok {
		n.unsupported("%s of the last element of header stack %s", quote(part[1].str()), quote(part[0].str()))
	}
	return l.element(n, &Expr{Op: OpStackField, Stack: s, Index: i})
}

// element completes an expression for field e.Index of an element of e.Stack.
func (l *loader) element(n node, e *Expr) *Expr {
	fields := l.prog.Headers[l.prog.Stacks[e.Stack].Headers[0]].Fields
	if e.Index >= len(fields) {
		n.invalid("field %d of a header with %d", e.Index, len(fields))
	}
	f := fields[e.Index]
	if f.Var {
		n.unsupported("varbit field %s as a number", quote(f.Name))
	}
	e.Bits, e.Signed = f.Bits, f.Signed
	return e
}
