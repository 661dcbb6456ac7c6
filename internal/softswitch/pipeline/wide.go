package pipeline

import (
	"math/big"
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// zeroExpr is the number 0.
var zeroExpr = &program.Expr{Op: program.OpConst, Const: new(big.Int), Bits: 1}

// wide compiles an expression to n words. Each operation has words of its own
// for what it works on: nothing runs twice at a time.
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

// extend copies the lowest words of src to dst, and clears what dst has more.
func extend(dst, src []uint64) {
	d := len(dst) - len(src)
	if d < 0 {
		copy(dst, src[-d:])
		return
	}
	clear(dst[:d])
	copy(dst[d:], src)
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

// wideShift compiles shifts by constants. A shift to the right needs as many
// more words as come in from above.
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

// at returns a word, 0 where there is none.
func at(v []uint64, i int) uint64 {
	if i < 0 || i >= len(v) {
		return 0
	}
	return v[i]
}

// shiftWide compiles a shift to the right of more than 64 bits, of which the
// lowest 64 are wanted.
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

// A cell finds a field of a stack's element that only the packet tells. It
// returns its first word, or -1 if the stack has no such element.
type cell func(pk *Packet) int

// cell compiles OpStackField and OpStackElem, and returns the field's shape.
func (c *compiler) cell(e *program.Expr) (cell, slot) {
	st := c.stacks[e.Stack]
	var shape slot
	first := make([]int, len(st.elems))
	for i, h := range st.elems {
		shape = c.slot(program.FieldRef{Header: h, Field: e.Index})
		first[i] = shape.w
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

// parserNum compiles what mostly parsers use. What is not there reads as 0.
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
	if shape.signed && shape.bits < 64 {
		return signExtend(x, shape.bits)
	}
	return x
}

// parserWide is parserNum for more than 64 bits.
func (c *compiler) parserWide(e *program.Expr) wide {
	if e.Op == program.OpLookahead {
		bits, off := e.Bits, e.Offset
		t := make([]uint64, wordsOf(bits))
		return func(pk *Packet, dst []uint64) {
			n, at := topBits(bits), off
			for i := range t {
				t[i] = pk.peek(at, n)
				at += n
				n = 64
			}
			extend(dst, t)
		}
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

// peek reads bits ahead of the parser, 0 where the frame has ended.
func (pk *Packet) peek(bit, bits int) uint64 {
	if pk.pos+(bit+bits+7)/8 > pk.end {
		return 0
	}
	return peek(pk.buf.b[pk.pos:], bit, bits)
}

// lookahead is how many bits ahead of the parser an expression reads.
func lookahead(e *program.Expr) int {
	if e == nil {
		return 0
	}
	n := 0
	if e.Op == program.OpLookahead {
		n = e.Offset + e.Bits
	}
	return max(n, lookahead(e.Left), lookahead(e.Right), lookahead(e.Cond))
}
