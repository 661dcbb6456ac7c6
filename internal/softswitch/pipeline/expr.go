package pipeline

import (
	"bytes"
	"math/big"
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// Expressions are mutually recursive: numbers of at most 64 bits, conditions, and wider numbers.

// num compiles an expression. Frequent forms have specialized closures, because a call costs more
// than the operation.
func (c *compiler) num(e *program.Expr) num {
	if e.Bool {
		return c.boolNum(e)
	}
	if k, ok := c.konst(e); ok {
		return func(*Packet) uint64 { return k }
	}
	if i, ok := c.word(e); ok {
		return func(pk *Packet) uint64 { return pk.w[i] }
	}
	if ps, k, ok := c.parts(e); ok {
		return partsNum(ps, k)
	}
	switch e.Op {
	case program.OpField:
		return c.slotNum(c.slot(e.Field))
	case program.OpParam:
		return c.paramNum(e)
	case program.OpLookahead, program.OpStackField, program.OpStackElem,
		program.OpStackLast, program.OpStackSize:
		return c.parserNum(e)
	case program.OpAdd, program.OpSub, program.OpMul, program.OpAnd, program.OpOr, program.OpXor:
		return c.binary(e)
	case program.OpShl, program.OpShr:
		return c.shift(e)
	case program.OpDiv, program.OpMod:
		return c.divide(e)
	case program.OpNot:
		x := c.num(e.Left)
		return func(pk *Packet) uint64 { return ^x(pk) }
	case program.OpB2D:
		return c.boolNum(e.Left)
	case program.OpTwoComp:
		return signExtend(c.num(e.Left), c.bitsArg(e))
	case program.OpSatCast, program.OpUSatCast:
		return c.saturate(e)
	case program.OpBig:
		x, mask := c.bigs().num(e.Left), maskOf(e.Bits)
		return func(pk *Packet) uint64 { return low64(x(pk)) & mask }
	case program.OpCond:
		return either(c.cond(e.Cond), c.num(e.Left), c.num(e.Right))
	}
	c.fail("operation %d in an expression", e.Op)
	return func(*Packet) uint64 { return 0 }
}

func (c *compiler) bigs() bigs { return bigs{c.wide, c.cond, &c.p.stats.DivisionByZero} }

// boolNum compiles a boolean to 0 or 1.
func (c *compiler) boolNum(e *program.Expr) num {
	if i, ok := c.boolWord(e); ok {
		return func(pk *Packet) uint64 { return pk.w[i] }
	}
	t := c.cond(e)
	return func(pk *Packet) uint64 {
		if t(pk) {
			return 1
		}
		return 0
	}
}

// binary compiles arithmetic that is correct modulo 2^64.
func (c *compiler) binary(e *program.Expr) num {
	if x := c.strip(e, anyWidth); x != e {
		return c.num(x)
	}
	if l, ok := c.operand(e.Left); ok {
		if r, ok := c.operand(e.Right); ok {
			return operands(e.Op, l, r)
		}
	}
	x := c.num(e.Left)
	if k, ok := c.konst(e.Right); ok {
		return numConst(e.Op, x, k)
	}
	y := c.num(e.Right)
	switch e.Op {
	case program.OpAdd:
		return func(pk *Packet) uint64 { return x(pk) + y(pk) }
	case program.OpSub:
		return func(pk *Packet) uint64 { return x(pk) - y(pk) }
	case program.OpMul:
		return func(pk *Packet) uint64 { return x(pk) * y(pk) }
	case program.OpOr:
		return func(pk *Packet) uint64 { return x(pk) | y(pk) }
	case program.OpAnd:
		return func(pk *Packet) uint64 { return x(pk) & y(pk) }
	}
	return func(pk *Packet) uint64 { return x(pk) ^ y(pk) }
}

// shift compiles shifts. A right shift needs the exact value.
func (c *compiler) shift(e *program.Expr) num {
	n, konst := c.konst(e.Right)
	if e.Op == program.OpShl {
		x := c.num(e.Left)
		if konst {
			return func(pk *Packet) uint64 { return x(pk) << n }
		}
		y := c.num(e.Right)
		return func(pk *Packet) uint64 { return x(pk) << y(pk) }
	}
	if !fits(e.Left) {
		return c.shiftWide(e)
	}
	x := c.num(e.Left)
	switch {
	case e.Left.Signed && konst:
		return func(pk *Packet) uint64 { return uint64(int64(x(pk)) >> n) }
	case e.Left.Signed:
		y := c.num(e.Right)
		return func(pk *Packet) uint64 { return uint64(int64(x(pk)) >> y(pk)) }
	case konst:
		return func(pk *Packet) uint64 { return x(pk) >> n }
	}
	y := c.num(e.Right)
	return func(pk *Packet) uint64 { return x(pk) >> y(pk) }
}

// divide compiles division, which P4 defines for nonnegative numbers only. Division by 0 results in
// 0, and is counted.
func (c *compiler) divide(e *program.Expr) num {
	x, y, st := c.num(e.Left), c.num(e.Right), &c.p.stats
	mod := e.Op == program.OpMod
	return func(pk *Packet) uint64 {
		a, b := x(pk), y(pk)
		switch {
		case b == 0:
			st.DivisionByZero++
			return 0
		case mod:
			return a % b
		}
		return a / b
	}
}

// saturate compiles casts to the nearest value of the type.
func (c *compiler) saturate(e *program.Expr) num {
	x, bits := c.num(e.Left), c.bitsArg(e)
	switch {
	case e.Op == program.OpSatCast && !e.Left.Signed:
		top := maskOf(bits - 1)
		return func(pk *Packet) uint64 { return min(x(pk), top) }
	case e.Op == program.OpSatCast:
		top := int64(maskOf(bits - 1))
		return func(pk *Packet) uint64 { return uint64(max(-top-1, min(int64(x(pk)), top))) }
	case !e.Left.Signed:
		top := maskOf(bits)
		return func(pk *Packet) uint64 { return min(x(pk), top) }
	}
	top := maskOf(bits)
	return func(pk *Packet) uint64 { return min(uint64(max(int64(x(pk)), 0)), top) }
}

// cond compiles a boolean expression.
func (c *compiler) cond(e *program.Expr) cond {
	if k, ok := c.konst(e); ok {
		b := k != 0
		return func(*Packet) bool { return b }
	}
	if t, ok := c.test(e); ok {
		return t.cond()
	}
	switch e.Op {
	case program.OpLAnd, program.OpLOr:
		return c.logic(e)
	case program.OpLNot:
		t := c.cond(e.Left)
		return func(pk *Packet) bool { return !t(pk) }
	case program.OpD2B:
		if !fits(e.Left) {
			return c.wideCompare(e.Left, zeroExpr, false)
		}
		x := c.num(e.Left)
		return func(pk *Packet) bool { return x(pk) != 0 }
	case program.OpEq, program.OpNe, program.OpLt, program.OpLe, program.OpGt, program.OpGe:
		return c.compare(e)
	case program.OpEqVar:
		l, r := c.slot(e.Left.Field).w, c.slot(e.Right.Field).w
		return func(pk *Packet) bool {
			return bytes.Equal(bytes.TrimLeft(pk.varbit(pk.w[l]), "\x00"), bytes.TrimLeft(pk.varbit(pk.w[r]), "\x00"))
		}
	case program.OpBig:
		return c.bigs().test(e.Left)
	case program.OpCond:
		return either(c.cond(e.Cond), c.cond(e.Left), c.cond(e.Right))
	}
	c.fail("operation %d in a condition", e.Op)
	return func(*Packet) bool { return false }
}

// nonZero compiles the test whether a number or boolean is not 0.
func (c *compiler) nonZero(e *program.Expr) cond {
	if e.Op == program.OpB2D {
		return c.cond(e.Left)
	}
	return c.cond(&program.Expr{Op: program.OpD2B, Left: e, Bool: true})
}

// logic compiles chains of and, or or.
func (c *compiler) logic(e *program.Expr) cond {
	var ts []test
	list := terms(e.Op, e, nil)
	for _, t := range list {
		t, ok := c.test(t)
		if !ok {
			break
		}
		ts = append(ts, t)
	}
	and := e.Op == program.OpLAnd
	if len(ts) == len(list) {
		return testChain(ts, and)
	}
	x, y := c.cond(e.Left), c.cond(e.Right)
	if and {
		return func(pk *Packet) bool { return x(pk) && y(pk) }
	}
	return func(pk *Packet) bool { return x(pk) || y(pk) }
}

// compare compiles comparisons of two numbers. Comparisons with constants have specialized
// closures.
func (c *compiler) compare(e *program.Expr) cond {
	equality := e.Op == program.OpEq || e.Op == program.OpNe
	if !fits(e.Left) || !fits(e.Right) {
		if !equality {
			c.fail("an order of numbers of more than 64 bits")
		}
		return c.wideCompare(e.Left, e.Right, e.Op == program.OpEq)
	}
	op, left, right := e.Op, e.Left, e.Right
	signed := (left.Signed || right.Signed) && !equality
	if k, ok := c.konst(right); ok && !signed {
		lo, span, some := interval(op, k)
		if l, ok := c.operand(left); ok && some {
			return func(pk *Packet) bool { return l.of(pk.w)-lo <= span }
		}
		x := c.num(left)
		return func(pk *Packet) bool { return x(pk)-lo <= span && some }
	}
	switch op { // x > y is y < x
	case program.OpGt:
		op, left, right = program.OpLt, right, left
	case program.OpGe:
		op, left, right = program.OpLe, right, left
	}
	if l, ok := c.operand(left); ok {
		if r, ok := c.operand(right); ok {
			return compareParts(op, l, r)
		}
	}
	x, y := c.num(left), c.num(right)
	switch {
	case op == program.OpEq:
		return func(pk *Packet) bool { return x(pk) == y(pk) }
	case op == program.OpNe:
		return func(pk *Packet) bool { return x(pk) != y(pk) }
	case op == program.OpLt && signed:
		return func(pk *Packet) bool { return int64(x(pk)) < int64(y(pk)) }
	case op == program.OpLt:
		return func(pk *Packet) bool { return x(pk) < y(pk) }
	case signed:
		return func(pk *Packet) bool { return int64(x(pk)) <= int64(y(pk)) }
	}
	return func(pk *Packet) bool { return x(pk) <= y(pk) }
}

// zeroExpr is the number 0.
var zeroExpr = &program.Expr{Op: program.OpConst, Const: new(big.Int), Bits: 1}

// wide compiles an expression to n words. Each operation has its own words for its operands,
// because no operation runs concurrently with itself.
func (c *compiler) wide(e *program.Expr, n int) wide {
	if k := c.constant(e); k != nil {
		v := make([]uint64, n)
		bigWords(k, v)
		return func(_ *Packet, dst []uint64) { copy(dst, v) }
	}
	if fits(e) {
		return c.wideOf(e)
	}
	switch e.Op {
	case program.OpField:
		s := c.slot(e.Field)
		return func(pk *Packet, dst []uint64) { extend(dst, pk.w[s.w:s.w+s.n]) }
	case program.OpParam:
		lo := c.offs[e.Index]
		hi := lo + wordsOf(c.params[e.Index].Bits)
		return func(pk *Packet, dst []uint64) { extend(dst, pk.args[lo:hi]) }
	case program.OpLookahead, program.OpStackField, program.OpStackElem:
		return c.parserWide(e)
	case program.OpAnd, program.OpOr, program.OpXor:
		return c.wideBitwise(e, n)
	case program.OpNot:
		x := c.wide(e.Left, n)
		return func(pk *Packet, dst []uint64) {
			x(pk, dst)
			for i := range dst {
				dst[i] = ^dst[i]
			}
		}
	case program.OpShl, program.OpShr:
		return c.wideShift(e, n)
	case program.OpBig:
		x := c.bigs().num(e.Left)
		return func(pk *Packet, dst []uint64) { bigWords(x(pk), dst) }
	case program.OpCond:
		t, x, y := c.cond(e.Cond), c.wide(e.Left, n), c.wide(e.Right, n)
		return func(pk *Packet, dst []uint64) {
			if t(pk) {
				x(pk, dst)
			} else {
				y(pk, dst)
			}
		}
	}
	c.fail("operation %d on more than 64 bits", e.Op)
	return func(*Packet, []uint64) {}
}

// wideOf widens a number of at most 64 bits.
func (c *compiler) wideOf(e *program.Expr) wide {
	x, signed := c.num(e), e.Signed
	return func(pk *Packet, dst []uint64) {
		v := x(pk)
		fill := uint64(0)
		if signed {
			fill = uint64(int64(v) >> 63)
		}
		for i := range dst {
			dst[i] = fill
		}
		dst[len(dst)-1] = v
	}
}

func (c *compiler) wideBitwise(e *program.Expr, n int) wide {
	x, y, op, t := c.wide(e.Left, n), c.wide(e.Right, n), e.Op, make([]uint64, n)
	return func(pk *Packet, dst []uint64) {
		x(pk, dst)
		y(pk, t)
		switch op {
		case program.OpAnd:
			for i := range dst {
				dst[i] &= t[i]
			}
		case program.OpOr:
			for i := range dst {
				dst[i] |= t[i]
			}
		default:
			for i := range dst {
				dst[i] ^= t[i]
			}
		}
	}
}

// wideShift compiles shifts by constants. A right shift needs as many additional words as are
// shifted in from above.
func (c *compiler) wideShift(e *program.Expr, n int) wide {
	k := c.constant(e.Right)
	if k == nil || k.Sign() < 0 || k.BitLen() > 16 {
		c.fail("a shift of more than 64 bits by something else than a small constant")
		return func(*Packet, []uint64) {}
	}
	by := int(k.Int64())
	words, bits := by/64, uint(by%64)
	if e.Op == program.OpShl {
		x := c.wide(e.Left, n)
		return func(pk *Packet, dst []uint64) {
			x(pk, dst)
			for i := range dst {
				dst[i] = at(dst, i+words)<<bits | at(dst, i+words+1)>>(64-bits)
			}
		}
	}
	t := make([]uint64, n+(by+63)/64)
	x := c.wide(e.Left, len(t))
	return func(pk *Packet, dst []uint64) {
		x(pk, t)
		d := len(t) - n - words
		for i := range dst {
			dst[i] = at(t, i+d)>>bits | at(t, i+d-1)<<(64-bits)
		}
	}
}

// shiftWide compiles the lowest 64 bits of a right shift of more than 64 bits.
func (c *compiler) shiftWide(e *program.Expr) num {
	x, t := c.wideShift(e, 1), make([]uint64, 1)
	return func(pk *Packet) uint64 {
		x(pk, t)
		return t[0]
	}
}

// wideCompare compiles equality of numbers of more than 64 bits.
func (c *compiler) wideCompare(l, r *program.Expr, equal bool) cond {
	if l.Bits == 0 || r.Bits == 0 {
		c.fail("a comparison of numbers of unknown width")
	}
	n := max(wordsOf(l.Bits), wordsOf(r.Bits))
	x, y, s, t := c.wide(l, n), c.wide(r, n), make([]uint64, n), make([]uint64, n)
	return func(pk *Packet) bool {
		x(pk, s)
		y(pk, t)
		return slices.Equal(s, t) == equal
	}
}

// A cell finds a field of a stack's element that depends on the packet. It returns its first word,
// or -1 if there is no such element.
type cell func(pk *Packet) int

// cell compiles OpStackField and OpStackElem, and returns the field's slot.
func (c *compiler) cell(e *program.Expr) (cell, slot) {
	st := c.stacks[e.Stack]
	var shape slot
	var first []int
	for _, h := range st.column(e.Head) {
		shape = c.slot(program.FieldRef{Header: h, Field: e.Index})
		first = append(first, shape.w)
	}
	if e.Op == program.OpStackField {
		next := st.next
		return func(pk *Packet) int {
			if i := pk.w[next] - 1; i < uint64(len(first)) {
				return first[i]
			}
			return -1
		}, shape
	}
	x := c.num(e.Left)
	return func(pk *Packet) int {
		if i := x(pk); i < uint64(len(first)) {
			return first[i]
		}
		return -1
	}, shape
}

// parserNum compiles operations used mostly by parsers. Missing bits and elements read as 0.
func (c *compiler) parserNum(e *program.Expr) num {
	switch e.Op {
	case program.OpStackLast:
		i := c.stacks[e.Stack].next
		return func(pk *Packet) uint64 { return pk.w[i] - 1 }
	case program.OpStackSize:
		i := c.stacks[e.Stack].next
		return func(pk *Packet) uint64 { return pk.w[i] }
	case program.OpLookahead:
		bits := min(e.Bits, 64)
		off := e.Offset + e.Bits - bits
		return func(pk *Packet) uint64 { return pk.peek(off, bits) }
	}
	at, shape := c.cell(e)
	last := shape.n - 1
	x := func(pk *Packet) uint64 {
		if i := at(pk); i >= 0 {
			return pk.w[i+last]
		}
		return 0
	}
	if shape.signed {
		return signExtend(x, shape.bits)
	}
	return x
}

// parserWide is parserNum for more than 64 bits.
func (c *compiler) parserWide(e *program.Expr) wide {
	if e.Op == program.OpLookahead {
		return lookaheadWide(e.Offset, e.Bits)
	}
	at, shape := c.cell(e)
	return func(pk *Packet, dst []uint64) {
		if i := at(pk); i >= 0 {
			extend(dst, pk.w[i:i+shape.n])
			return
		}
		clear(dst)
	}
}
