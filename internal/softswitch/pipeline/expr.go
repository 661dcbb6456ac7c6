package pipeline

import (
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// num compiles an expression. Frequent shapes get closures of their own: a call
// costs more than the operation.
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
	case program.OpCond:
		t, x, y := c.cond(e.Cond), c.num(e.Left), c.num(e.Right)
		return func(pk *Packet) uint64 {
			if t(pk) {
				return x(pk)
			}
			return y(pk)
		}
	}
	c.fail("operation %d in an expression", e.Op)
	return func(*Packet) uint64 { return 0 }
}

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

// slotNum reads a field that word does not.
func (c *compiler) slotNum(s slot) num {
	i := s.w + s.n - 1
	x := func(pk *Packet) uint64 { return pk.w[i] }
	if s.signed && s.bits < 64 {
		return signExtend(x, s.bits)
	}
	return x
}

func (c *compiler) paramNum(e *program.Expr) num {
	i := c.offs[e.Index] + wordsOf(c.params[e.Index].Bits) - 1
	return func(pk *Packet) uint64 { return pk.args[i] }
}

// bitsArg is the width that a cast is to.
func (c *compiler) bitsArg(e *program.Expr) int {
	k := c.constant(e.Right)
	if k == nil || !k.IsInt64() || k.Int64() < 1 || k.Int64() > 64 {
		c.fail("a cast to a width that is not a constant of 1 to 64")
		return 64
	}
	return int(k.Int64())
}

func signExtend(x num, bits int) num {
	if bits >= 64 {
		return x
	}
	sh := 64 - bits
	return func(pk *Packet) uint64 { return uint64(int64(x(pk)<<sh) >> sh) }
}

// binary compiles arithmetic for which it does not matter that it is modulo 2^64.
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

// operands is arithmetic of two parts of words.
func operands(op program.Op, l, r part) num {
	switch op {
	case program.OpAdd:
		return func(pk *Packet) uint64 { return l.of(pk.w) + r.of(pk.w) }
	case program.OpSub:
		return func(pk *Packet) uint64 { return l.of(pk.w) - r.of(pk.w) }
	case program.OpMul:
		return func(pk *Packet) uint64 { return l.of(pk.w) * r.of(pk.w) }
	case program.OpOr:
		return func(pk *Packet) uint64 { return l.of(pk.w) | r.of(pk.w) }
	case program.OpAnd:
		return func(pk *Packet) uint64 { return l.of(pk.w) & r.of(pk.w) }
	}
	return func(pk *Packet) uint64 { return l.of(pk.w) ^ r.of(pk.w) }
}

func numConst(op program.Op, x num, k uint64) num {
	switch op {
	case program.OpAdd:
		return func(pk *Packet) uint64 { return x(pk) + k }
	case program.OpSub:
		return func(pk *Packet) uint64 { return x(pk) - k }
	case program.OpMul:
		return func(pk *Packet) uint64 { return x(pk) * k }
	case program.OpOr:
		return func(pk *Packet) uint64 { return x(pk) | k }
	case program.OpAnd:
		return func(pk *Packet) uint64 { return x(pk) & k }
	}
	return func(pk *Packet) uint64 { return x(pk) ^ k }
}

// shift compiles shifts. One to the right needs the exact value.
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

// divide compiles division, by definition of P4 of numbers that are not negative.
// What is divided by 0 gives 0, and is counted.
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

// saturate compiles casts to the nearest value that the type has.
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
