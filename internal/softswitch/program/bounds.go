package program

// word is the width of what the switch computes with.
const word = 64

// maxBound is the widest bound that is worth stating.
const maxBound = 2 * maxBits

// bound derives e's bound from those of its operands.
func (e *Expr) bound() {
	switch e.Op {
	case OpTwoComp, OpSatCast, OpUSatCast:
		e.Bits, e.Signed = int(e.Right.Const.Int64()), e.Op != OpUSatCast
	case OpAnd:
		e.boundAnd()
	case OpShl, OpShr:
		e.boundShift()
	case OpNot:
		if e.Left.Bits > 0 {
			e.Bits, e.Signed = e.Left.signedBits(), true
		}
	default:
		if e.Left.Bits > 0 && e.Right.Bits > 0 {
			e.boundBoth()
		}
	}
	if e.Bits > maxBound {
		e.Bits, e.Signed = 0, false
	}
}

// signedBits is the width of e's bound as a signed one.
func (e *Expr) signedBits() int {
	if e.Signed {
		return e.Bits
	}
	return e.Bits + 1
}

func (e *Expr) boundBoth() {
	l, r := e.Left.Bits, e.Right.Bits
	e.Signed = e.Left.Signed || e.Right.Signed || e.Op == OpSub
	if e.Signed {
		l, r = e.Left.signedBits(), e.Right.signedBits()
	}
	switch e.Op {
	case OpAdd:
		e.Bits = max(l, r) + 1
	case OpSub:
		e.Bits = max(l, r) + 1
		if !e.Left.Signed && !e.Right.Signed {
			e.Bits-- // the difference of two from 0 to 2^n-1 takes n+1 bits, sign included
		}
	case OpMul:
		e.Bits = l + r
	case OpOr, OpXor, OpCond:
		e.Bits = max(l, r)
	case OpDiv, OpMod:
		if e.Bits = l; e.Op == OpMod {
			e.Bits = min(l, r)
		}
		if e.Signed {
			e.Bits, e.Signed = 0, false // refused later
		}
	}
}

// boundAnd takes the narrower of the operands that cannot be negative.
func (e *Expr) boundAnd() {
	for _, o := range []*Expr{e.Left, e.Right} {
		if o.Bits > 0 && !o.Signed && (e.Bits == 0 || o.Bits < e.Bits) {
			e.Bits = o.Bits
		}
	}
	if e.Bits == 0 && e.Left.Bits > 0 && e.Right.Bits > 0 {
		e.Bits, e.Signed = max(e.Left.Bits, e.Right.Bits), true
	}
}

func (e *Expr) boundShift() {
	if e.Left.Bits == 0 {
		return
	}
	e.Bits, e.Signed = e.Left.Bits, e.Left.Signed
	k, ok := e.shift()
	switch {
	case e.Op == OpShr && ok:
		e.Bits = max(e.Bits-k, 1)
	case e.Op == OpShr:
	case ok:
		e.Bits += k
	default:
		e.Bits, e.Signed = 0, false
	}
}

// shift returns the amount of a shift by a constant.
func (e *Expr) shift() (k int, constant bool) {
	if e.Right.Op != OpConst {
		return 0, false
	}
	return int(e.Right.Const.Int64()), true
}

// fits tells whether e's value fits in a word.
func (e *Expr) fits() bool { return e.Bits > 0 && e.Bits <= word }

// exact refuses an expression whose value may not fit in a word, or is not got
// right in words.
func (n node) exact(e *Expr) {
	if !e.fits() {
		n.unsupported("an intermediate value that needs more than %d bits", word)
	}
	n.need(e, e.Bits)
}

// whole refuses an expression whose value has no bound, or is not got right.
func (n node) whole(e *Expr) {
	if e.Bits == 0 {
		n.unsupported("a value of unknown width")
	}
	n.need(e, e.Bits)
}

// need refuses an expression whose lowest bits are not got right by the rules that
// the comment of Op states.
func (n node) need(e *Expr, bits int) {
	if e.Bits > 0 {
		if bits > word && e.Signed && bits > e.Bits {
			n.unsupported("a signed value widened to %d bits", bits)
		}
		bits = min(bits, e.Bits)
	}
	switch e.Op {
	case OpStackElem:
		n.exact(e.Left)
	case OpAnd, OpOr, OpXor, OpCond:
		n.need(e.Left, bits)
		n.need(e.Right, bits)
		if e.Cond != nil {
			n.need(e.Cond, 1)
		}
	case OpNot:
		n.need(e.Left, bits)
	case OpAdd, OpSub, OpMul:
		n.narrow(bits, "arithmetic")
		n.need(e.Left, bits)
		n.need(e.Right, bits)
	case OpShl, OpShr:
		n.needShift(e, bits)
	case OpDiv, OpMod:
		n.exact(e.Left)
		n.exact(e.Right)
		if e.Left.Signed || e.Right.Signed {
			n.unsupported("division of signed values")
		}
	case OpEq, OpNe, OpLt, OpLe, OpGt, OpGe:
		n.needComparison(e)
	case OpLAnd, OpLOr:
		n.need(e.Left, 1)
		n.need(e.Right, 1)
	case OpLNot, OpB2D:
		n.need(e.Left, 1)
	case OpD2B:
		n.whole(e.Left)
	case OpTwoComp:
		n.narrow(e.Bits, "a signed cast")
		n.need(e.Left, e.Bits)
	case OpSatCast, OpUSatCast:
		n.narrow(e.Bits, "a saturating cast")
		n.exact(e.Left)
	}
}

func (n node) narrow(bits int, what string) {
	if bits > word {
		n.unsupported("%s on %d bits, more than %d", what, bits, word)
	}
}

func (n node) needShift(e *Expr, bits int) {
	_, constant := e.shift()
	switch {
	case constant && e.Op == OpShl:
		n.need(e.Left, bits)
	case constant:
		if e.Left.Signed && !e.Left.fits() {
			n.unsupported("a signed value of more than %d bits shifted right", word)
		}
		n.whole(e.Left)
	case e.Op == OpShl:
		n.narrow(bits, "a shift by a variable")
		n.need(e.Left, bits)
		n.exact(e.Right)
	default:
		n.exact(e.Left)
		n.exact(e.Right)
	}
	if !constant && e.Right.Signed {
		n.unsupported("a shift by a signed value")
	}
}

func (n node) needComparison(e *Expr) {
	left, right := e.Left, e.Right
	switch {
	case left.Bool:
		n.need(left, 1)
		n.need(right, 1)
	case left.fits() && right.fits():
		if left.Signed != right.Signed && max(left.signedBits(), right.signedBits()) > word {
			n.unsupported("a comparison of a signed value with an unsigned one of %d bits", word)
		}
		n.exact(left)
		n.exact(right)
	case e.Op != OpEq && e.Op != OpNe:
		n.unsupported("an ordering of values that may need more than %d bits", word)
	case left.Signed || right.Signed:
		n.unsupported("a comparison of signed values of more than %d bits", word)
	default:
		n.whole(left)
		n.whole(right)
	}
}
