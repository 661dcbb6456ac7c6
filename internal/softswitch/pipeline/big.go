package pipeline

import (
	"encoding/binary"
	"math/big"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// A bigNum returns an unbounded integer, which is valid until the next call.
type bigNum func(pk *Packet) *big.Int

// maxShift is more than the width of any field.
const maxShift = 1 << 16

var bigOps = map[program.Op]func(z, x, y *big.Int) *big.Int{
	program.OpAdd: (*big.Int).Add, program.OpSub: (*big.Int).Sub, program.OpMul: (*big.Int).Mul,
	program.OpAnd: (*big.Int).And, program.OpOr: (*big.Int).Or, program.OpXor: (*big.Int).Xor,
	program.OpDiv: (*big.Int).Quo, program.OpMod: (*big.Int).Rem,
	program.OpShl: func(z, x, y *big.Int) *big.Int { // bits shifted out of all fields do not matter
		if y.CmpAbs(big.NewInt(maxShift)) > 0 {
			return z.SetInt64(0)
		}
		return z.Lsh(x, uint(y.Uint64()))
	},
	program.OpShr: func(z, x, y *big.Int) *big.Int {
		return z.Rsh(x, uint(min(low64(y), 1<<30)))
	},
	program.OpTwoComp: twoComp,
	program.OpSatCast: func(z, x, y *big.Int) *big.Int {
		half := new(big.Int).Lsh(big.NewInt(1), uint(y.Uint64())-1)
		return clamp(z, x, new(big.Int).Neg(half), half)
	},
	program.OpUSatCast: func(z, x, y *big.Int) *big.Int {
		return clamp(z, x, new(big.Int), new(big.Int).Lsh(big.NewInt(1), uint(y.Uint64())))
	},
}

// orders tells which comparisons hold for a number that is less, equal, or greater.
var orders = map[program.Op][3]bool{
	program.OpEq: {1: true}, program.OpNe: {0: true, 2: true}, program.OpLt: {0: true}, program.OpGt: {2: true},
	program.OpLe: {0: true, 1: true}, program.OpGe: {1: true, 2: true},
}

// twoComp sets z to x as a signed number of that many bits.
func twoComp(z, x, bits *big.Int) *big.Int {
	half := new(big.Int).Lsh(big.NewInt(1), uint(bits.Uint64())-1)
	z.And(z.Add(x, half), new(big.Int).Sub(new(big.Int).Lsh(half, 1), big.NewInt(1)))
	return z.Sub(z, half)
}

// clamp sets z to the number nearest to x that is at least lo and less than end.
func clamp(z, x, lo, end *big.Int) *big.Int {
	switch {
	case x.Cmp(lo) < 0:
		return z.Set(lo)
	case x.Cmp(end) >= 0:
		return z.Sub(end, big.NewInt(1))
	}
	return z.Set(x)
}

// bigs compiles what words cannot compute, which is slow and rare. Its leaves are numbers and
// conditions that words can compute.
type bigs struct {
	wide   func(e *program.Expr, n int) wide
	cond   func(e *program.Expr) cond
	byZero *uint64 // counts divisions by zero
}

func (c bigs) num(e *program.Expr) bigNum {
	z := new(big.Int)
	if f := bigOps[e.Op]; f != nil {
		x, y, divides := c.num(e.Left), c.num(e.Right), e.Op == program.OpDiv || e.Op == program.OpMod
		return func(pk *Packet) *big.Int {
			a, b := x(pk), y(pk)
			if divides && b.Sign() == 0 {
				*c.byZero++
				return z.SetInt64(0)
			}
			return f(z, a, b)
		}
	}
	switch e.Op {
	case program.OpConst:
		return func(*Packet) *big.Int { return e.Const }
	case program.OpNot:
		x := c.num(e.Left)
		return func(pk *Packet) *big.Int { return z.Not(x(pk)) }
	case program.OpB2D:
		t := c.test(e.Left)
		return func(pk *Packet) *big.Int {
			if z.SetInt64(0); t(pk) {
				z.SetInt64(1)
			}
			return z
		}
	case program.OpCond:
		return either(c.test(e.Cond), c.num(e.Left), c.num(e.Right))
	}
	words, bits := make([]uint64, wordsOf(e.Bits)), big.NewInt(int64(e.Bits))
	x, b := c.wide(e, len(words)), make([]byte, 8*len(words))
	return func(pk *Packet) *big.Int {
		x(pk, words)
		for i, w := range words {
			binary.BigEndian.PutUint64(b[8*i:], w)
		}
		if z.SetBytes(b); e.Signed {
			twoComp(z, z, bits)
		}
		return z
	}
}

func (c bigs) test(e *program.Expr) cond {
	switch e.Op {
	case program.OpLAnd, program.OpLOr:
		x, y, and := c.test(e.Left), c.test(e.Right), e.Op == program.OpLAnd
		return func(pk *Packet) bool {
			if a := x(pk); a != and {
				return a
			}
			return y(pk)
		}
	case program.OpLNot:
		x := c.test(e.Left)
		return func(pk *Packet) bool { return !x(pk) }
	case program.OpD2B:
		x := c.num(e.Left)
		return func(pk *Packet) bool { return x(pk).Sign() != 0 }
	case program.OpEq, program.OpNe, program.OpLt, program.OpLe, program.OpGt, program.OpGe:
		if e.Left.Bool {
			x, y, equal := c.test(e.Left), c.test(e.Right), e.Op == program.OpEq
			return func(pk *Packet) bool { return (x(pk) == y(pk)) == equal }
		}
		x, y, holds := c.num(e.Left), c.num(e.Right), orders[e.Op]
		return func(pk *Packet) bool { return holds[x(pk).Cmp(y(pk))+1] }
	case program.OpCond:
		return either(c.test(e.Cond), c.test(e.Left), c.test(e.Right))
	}
	return c.cond(e)
}
