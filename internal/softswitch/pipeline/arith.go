package pipeline

import (
	"math"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// operands compiles arithmetic on two parts of words.
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

// compareParts compiles a comparison of two unsigned parts of words.
func compareParts(op program.Op, l, r part) cond {
	switch op {
	case program.OpEq:
		return func(pk *Packet) bool { return l.of(pk.w) == r.of(pk.w) }
	case program.OpNe:
		return func(pk *Packet) bool { return l.of(pk.w) != r.of(pk.w) }
	case program.OpLt:
		return func(pk *Packet) bool { return l.of(pk.w) < r.of(pk.w) }
	}
	return func(pk *Packet) bool { return l.of(pk.w) <= r.of(pk.w) }
}

// interval returns the x for which the comparison with k holds: those for which x-lo, modulo 2^64,
// is at most span. If some is false, there are none.
func interval(op program.Op, k uint64) (lo, span uint64, some bool) {
	const top = math.MaxUint64
	switch op {
	case program.OpEq:
		return k, 0, true
	case program.OpNe:
		return k + 1, top - 1, true
	case program.OpLt:
		return 0, k - 1, k > 0
	case program.OpLe:
		return 0, k, true
	case program.OpGt:
		return k + 1, top - k - 1, k < top
	}
	return k, top - k, true
}

func signExtend(x num, bits int) num {
	if bits >= 64 {
		return x
	}
	sh := 64 - bits
	return func(pk *Packet) uint64 { return uint64(int64(x(pk)<<sh) >> sh) }
}

// slotNum compiles reading a field for which word does not suffice.
func (c *compiler) slotNum(s slot) num {
	i := s.w + s.n - 1
	x := func(pk *Packet) uint64 { return pk.w[i] }
	if s.signed {
		return signExtend(x, s.bits)
	}
	return x
}

func (c *compiler) paramNum(e *program.Expr) num {
	i := c.offs[e.Index] + wordsOf(c.params[e.Index].Bits) - 1
	return func(pk *Packet) uint64 { return pk.args[i] }
}

// bitsArg returns the target width of a cast.
func (c *compiler) bitsArg(e *program.Expr) int {
	k := c.constant(e.Right)
	if k == nil || !k.IsInt64() || k.Int64() < 1 || k.Int64() > 64 {
		c.fail("a cast to a width that is not a constant of 1 to 64")
		return 64
	}
	return int(k.Int64())
}

// extend copies the lowest words of src to dst, and clears the remaining words of dst.
func extend(dst, src []uint64) {
	d := len(dst) - len(src)
	if d < 0 {
		copy(dst, src[-d:])
		return
	}
	clear(dst[:d])
	copy(dst[d:], src)
}

// at returns a word of v, or 0 beyond its end.
func at(v []uint64, i int) uint64 {
	if i < 0 || i >= len(v) {
		return 0
	}
	return v[i]
}

// lookaheadWide reads bits ahead of the parser.
func lookaheadWide(off, bits int) wide {
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
