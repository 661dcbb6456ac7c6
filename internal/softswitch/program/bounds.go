package program

// word is the word size of the switch's arithmetic.
const word = 64

// maxBound is the largest bound that is tracked.
const maxBound = 2 * maxBits

// bound derives e's bound from its operands' bounds.
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

// signedBits returns the width of e's bound as a signed one.
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
			e.Bits, e.Signed = 0, false // rejected later
		}
	}
}

// boundAnd uses the narrower of the nonnegative operands.
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

// shift returns the shift count if it is constant.
func (e *Expr) shift() (k int, constant bool) {
	if e.Right.Op != OpConst {
		return 0, false
	}
	return int(e.Right.Const.Int64()), true
}

// fits reports whether e's value fits in a word.
func (e *Expr) fits() bool { return e.Bits > 0 && e.Bits <= word }

// exact reports whether e's value fits in a word, and word arithmetic computes it correctly.
func (e *Expr) exact() bool { return e.fits() && e.inWords(e.Bits) }

// whole reports whether word arithmetic computes e's value correctly, however wide it is.
func (e *Expr) whole() bool { return e.Bits > 0 && e.inWords(e.Bits) }

// inWords reports whether word arithmetic computes e's lowest bits correctly, by the rules in the
// comment of Op.
func (e *Expr) inWords(bits int) bool {
	if e.Bits > 0 {
		if bits > word && e.Signed && bits > e.Bits { // needs sign extension
			return false
		}
		bits = min(bits, e.Bits)
	}
	switch e.Op {
	case OpAnd, OpOr, OpXor, OpCond:
		return e.Left.inWords(bits) && e.Right.inWords(bits) && (e.Cond == nil || e.Cond.inWords(1))
	case OpNot:
		return e.Left.inWords(bits)
	case OpAdd, OpSub, OpMul:
		return bits <= word && e.Left.inWords(bits) && e.Right.inWords(bits)
	case OpShl, OpShr:
		return e.shiftInWords(bits)
	case OpDiv, OpMod:
		return e.Left.exact() && e.Right.exact() && !e.Left.Signed && !e.Right.Signed
	case OpEq, OpNe, OpLt, OpLe, OpGt, OpGe:
		return e.comparisonInWords()
	case OpLAnd, OpLOr:
		return e.Left.inWords(1) && e.Right.inWords(1)
	case OpLNot, OpB2D:
		return e.Left.inWords(1)
	case OpD2B:
		return e.Left.whole()
	case OpTwoComp:
		return e.Bits <= word && e.Left.inWords(e.Bits)
	case OpSatCast, OpUSatCast:
		return e.Bits <= word && e.Left.exact()
	}
	return true
}

func (e *Expr) shiftInWords(bits int) bool {
	_, constant := e.shift()
	switch {
	case constant && e.Op == OpShl:
		return e.Left.inWords(bits)
	case constant:
		return e.Left.whole() && (!e.Left.Signed || e.Left.fits())
	case e.Right.Signed || !e.Right.exact():
		return false
	case e.Op == OpShl:
		return bits <= word && e.Left.inWords(bits)
	}
	return e.Left.exact()
}

func (e *Expr) comparisonInWords() bool {
	left, right := e.Left, e.Right
	switch {
	case left.Bool:
		return left.inWords(1) && right.inWords(1)
	case left.fits() && right.fits():
		return left.exact() && right.exact() &&
			(left.Signed == right.Signed || max(left.signedBits(), right.signedBits()) <= word)
	}
	return (e.Op == OpEq || e.Op == OpNe) && !left.Signed && !right.Signed && left.whole() && right.whole()
}

// reduced returns e, of which only the lowest bits matter. If word arithmetic does not compute them
// correctly, it uses unbounded integers.
func (e *Expr) reduced(bits int) *Expr {
	if e.inWords(bits) {
		return e
	}
	return &Expr{Op: OpBig, Left: e, Bits: bits, Bool: e.Bool}
}
