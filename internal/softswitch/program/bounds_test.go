package program

import (
	"fmt"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// leafValues are the values that a random expression's fields have.
type leafValues map[*Expr]*big.Int

// genExpr draws a number of at most that depth, with bounds as the loader derives
// them, and values for its fields within their widths.
func genExpr(t *rapid.T, depth int, vals leafValues) *Expr {
	if depth == 0 || rapid.IntRange(0, 4).Draw(t, "leaf") == 0 {
		return genLeaf(t, vals)
	}
	op := rapid.SampledFrom([]Op{
		OpAdd, OpSub, OpMul, OpDiv, OpMod, OpShl, OpShr, OpAnd, OpAnd, OpAnd, OpOr, OpXor, OpNot,
		OpTwoComp, OpSatCast, OpUSatCast, OpCond, OpB2D,
	}).Draw(t, "op")
	e := &Expr{Op: op, Left: genExpr(t, depth-1, vals)}
	switch op {
	case OpNot:
	case OpB2D:
		e.Left, e.Bits = genBool(t, depth-1, vals), 1
		return e
	case OpTwoComp, OpSatCast, OpUSatCast:
		e.Right = constant(big.NewInt(rapid.Int64Range(1, 130).Draw(t, "width")))
	case OpCond:
		e.Cond, e.Right = genBool(t, depth-1, vals), genExpr(t, depth-1, vals)
	case OpShl, OpShr:
		if rapid.Bool().Draw(t, "constant") {
			e.Right = constant(big.NewInt(rapid.Int64Range(0, 140).Draw(t, "amount")))
		} else {
			e.Right = leaf(t, vals, rapid.IntRange(1, 7).Draw(t, "bits"), false)
		}
	case OpAnd:
		if rapid.Bool().Draw(t, "mask") {
			e.Right = constant(ones(rapid.SampledFrom([]int{1, 8, 32, 63, 64, 65, 128}).Draw(t, "ones")))
		} else {
			e.Right = genExpr(t, depth-1, vals)
		}
	default:
		e.Right = genExpr(t, depth-1, vals)
	}
	e.bound()
	return e
}

func genBool(t *rapid.T, depth int, vals leafValues) *Expr {
	op := rapid.SampledFrom([]Op{OpEq, OpNe, OpLt, OpLe, OpGt, OpGe, OpD2B}).Draw(t, "comparison")
	e := &Expr{Op: op, Bits: 1, Bool: true, Left: genExpr(t, max(depth-1, 0), vals)}
	if op != OpD2B {
		e.Right = genExpr(t, max(depth-1, 0), vals)
	}
	return e
}

func genLeaf(t *rapid.T, vals leafValues) *Expr {
	bits := rapid.SampledFrom([]int{1, 7, 8, 31, 32, 33, 63, 64, 65, 128}).Draw(t, "bits")
	if rapid.IntRange(0, 2).Draw(t, "constant") == 0 {
		return constant(draw(t, bits, rapid.Bool().Draw(t, "signed")))
	}
	return leaf(t, vals, bits, rapid.IntRange(0, 2).Draw(t, "signed") == 0)
}

func leaf(t *rapid.T, vals leafValues, bits int, signed bool) *Expr {
	e := &Expr{Op: OpField, Bits: bits, Signed: signed}
	vals[e] = draw(t, bits, signed)
	return e
}

// draw returns a value of that width, extremes more often than not.
func draw(t *rapid.T, bits int, signed bool) *big.Int {
	v := new(big.Int).SetBytes(rapid.SliceOfN(rapid.Byte(), 17, 17).Draw(t, "value"))
	switch rapid.IntRange(0, 5).Draw(t, "extreme") {
	case 0:
		v.SetInt64(0)
	case 1:
		v = ones(bits)
	case 2:
		v = ones(bits - 1)
	case 3:
		v.Lsh(big.NewInt(1), uint(bits-1))
	}
	return wrap(v, bits, signed)
}

// wrap reduces v to that many bits.
func wrap(v *big.Int, bits int, signed bool) *big.Int {
	v = new(big.Int).And(v, ones(bits))
	if signed && v.Bit(bits-1) == 1 {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), uint(bits)))
	}
	return v
}

func toInt(b bool) *big.Int {
	if b {
		return big.NewInt(1)
	}
	return new(big.Int)
}

func clamp(v *big.Int, bits int, signed bool) *big.Int {
	low, high := new(big.Int), ones(bits)
	if signed {
		low, high = new(big.Int).Not(ones(bits-1)), ones(bits-1)
	}
	switch {
	case v.Cmp(low) < 0:
		return low
	case v.Cmp(high) > 0:
		return high
	}
	return v
}

func compare(op Op, c int) bool {
	switch op {
	case OpEq:
		return c == 0
	case OpNe:
		return c != 0
	case OpLt:
		return c < 0
	case OpLe:
		return c <= 0
	case OpGt:
		return c > 0
	}
	return c >= 0
}

// unbounded evaluates e as bmv2 does, without any bound. The second result is
// false if a division has no result.
func unbounded(e *Expr, vals leafValues) (v *big.Int, ok bool) {
	switch e.Op {
	case OpConst:
		return e.Const, true
	case OpField:
		return vals[e], true
	}
	var l, r, c *big.Int
	for _, x := range []struct {
		e *Expr
		v **big.Int
	}{{e.Left, &l}, {e.Right, &r}, {e.Cond, &c}} {
		if x.e == nil {
			continue
		}
		if *x.v, ok = unbounded(x.e, vals); !ok {
			return nil, false
		}
	}
	z := new(big.Int)
	switch e.Op {
	case OpAdd:
		return z.Add(l, r), true
	case OpSub:
		return z.Sub(l, r), true
	case OpMul:
		return z.Mul(l, r), true
	case OpDiv, OpMod:
		if l.Sign() < 0 || r.Sign() <= 0 {
			return nil, false
		}
		if e.Op == OpDiv {
			return z.Div(l, r), true
		}
		return z.Mod(l, r), true
	case OpShl:
		return z.Lsh(l, uint(r.Int64())), true
	case OpShr:
		return z.Rsh(l, uint(r.Int64())), true
	case OpAnd:
		return z.And(l, r), true
	case OpOr:
		return z.Or(l, r), true
	case OpXor:
		return z.Xor(l, r), true
	case OpNot:
		return z.Not(l), true
	case OpTwoComp:
		return wrap(l, e.Bits, true), true
	case OpSatCast, OpUSatCast:
		return clamp(l, e.Bits, e.Op == OpSatCast), true
	case OpCond:
		if c.Sign() != 0 {
			return l, true
		}
		return r, true
	case OpB2D:
		return l, true
	case OpD2B:
		return toInt(l.Sign() != 0), true
	}
	return toInt(compare(e.Op, l.Cmp(r))), true
}

// TestBounds holds every bound that is derived against the unbounded value.
func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for range 40 {
			vals := leafValues{}
			e := genExpr(t, 4, vals)
			checkBound(t, e, vals)
		}
	})
}

func checkBound(t *rapid.T, e *Expr, vals leafValues) {
	if e == nil {
		return
	}
	for _, sub := range []*Expr{e.Left, e.Right, e.Cond} {
		checkBound(t, sub, vals)
	}
	v, ok := unbounded(e, vals)
	if ok && e.Bits > 0 && wrap(v, e.Bits, e.Signed).Cmp(v) != 0 {
		t.Fatalf("operation %s gives %v, beyond %d bits, signed %t", opName(e), v, e.Bits, e.Signed)
	}
}

func opName(e *Expr) string {
	if int(e.Op) < len(opNames) && opNames[e.Op] != "" {
		return opNames[e.Op]
	}
	return fmt.Sprint(e.Op)
}

// machine evaluates expressions with 64-bit words and, where these don't do, with
// what the comment of Op allows for wider values.
type machine struct {
	t    *rapid.T
	vals leafValues
}

var mod64 = ones(word)

func (m machine) word(e *Expr) uint64 {
	switch e.Op {
	case OpConst:
		return new(big.Int).And(e.Const, mod64).Uint64()
	case OpField:
		return new(big.Int).And(m.vals[e], mod64).Uint64()
	case OpShl:
		return m.word(e.Left) << m.word(e.Right)
	case OpShr:
		return m.shiftRight(e)
	case OpNot:
		return ^m.word(e.Left)
	case OpTwoComp:
		return uint64(int64(m.word(e.Left)<<(word-e.Bits)) >> (word - e.Bits))
	case OpSatCast, OpUSatCast:
		return clampWord(m.value(e.Left), e)
	case OpCond:
		if m.truth(e.Cond) {
			return m.word(e.Left)
		}
		return m.word(e.Right)
	case OpB2D:
		return toInt(m.truth(e.Left)).Uint64()
	}
	l, r := m.word(e.Left), m.word(e.Right)
	switch e.Op {
	case OpAdd:
		return l + r
	case OpSub:
		return l - r
	case OpMul:
		return l * r
	case OpDiv:
		return l / max(r, 1)
	case OpMod:
		return l % max(r, 1)
	case OpAnd:
		return l & r
	case OpOr:
		return l | r
	case OpXor:
		return l ^ r
	}
	m.t.Fatalf("operation %s in a word", opName(e))
	return 0
}

// value reads a word by its bound.
func (m machine) value(e *Expr) *big.Int {
	if e.Signed {
		return big.NewInt(int64(m.word(e)))
	}
	return new(big.Int).SetUint64(m.word(e))
}

func clampWord(v *big.Int, e *Expr) uint64 {
	return new(big.Int).And(clamp(v, e.Bits, e.Signed), mod64).Uint64()
}

func (m machine) shiftRight(e *Expr) uint64 {
	switch {
	case !e.Left.fits():
		v := m.wide(e.Left)
		return v.And(v.Rsh(v, uint(m.word(e.Right))), mod64).Uint64()
	case e.Left.Signed:
		return uint64(int64(m.word(e.Left)) >> m.word(e.Right))
	}
	return m.word(e.Left) >> m.word(e.Right)
}

func (m machine) truth(e *Expr) bool {
	switch {
	case e.Op == OpD2B && e.Left.fits():
		return m.word(e.Left) != 0
	case e.Op == OpD2B:
		return m.wide(e.Left).Sign() != 0
	case e.Left.fits() && e.Right.fits():
		l, r := m.word(e.Left), m.word(e.Right)
		if e.Left.Signed || e.Right.Signed {
			return compare(e.Op, big.NewInt(int64(l)).Cmp(big.NewInt(int64(r))))
		}
		return compare(e.Op, new(big.Int).SetUint64(l).Cmp(new(big.Int).SetUint64(r)))
	}
	return compare(e.Op, m.wide(e.Left).Cmp(m.wide(e.Right)))
}

// wide returns a value of more than a word, as a bit string of the bound's width.
func (m machine) wide(e *Expr) *big.Int {
	if e.fits() {
		return new(big.Int).SetUint64(m.word(e))
	}
	if e.Bits == 0 {
		m.t.Fatalf("operation %s of unknown width", opName(e))
	}
	z := new(big.Int)
	switch e.Op {
	case OpConst:
		z.Set(e.Const)
	case OpField:
		z.Set(m.vals[e])
	case OpAnd:
		z.And(m.wide(e.Left), m.wide(e.Right))
	case OpOr:
		z.Or(m.wide(e.Left), m.wide(e.Right))
	case OpXor:
		z.Xor(m.wide(e.Left), m.wide(e.Right))
	case OpNot:
		z.Not(m.wide(e.Left))
	case OpShl:
		z.Lsh(m.wide(e.Left), uint(m.word(e.Right)))
	case OpShr:
		z.Rsh(m.wide(e.Left), uint(m.word(e.Right)))
	case OpCond:
		if m.truth(e.Cond) {
			z = m.wide(e.Left)
		} else {
			z = m.wide(e.Right)
		}
	default:
		m.t.Fatalf("operation %s on %d bits", opName(e), e.Bits)
	}
	return z.And(z, ones(e.Bits))
}

// TestWordsSuffice checks that for everything that need accepts, word arithmetic computes the same
// lowest bits as unbounded integers do.
func TestWordsSuffice(t *testing.T) {
	passed := map[Op]int{}
	rapid.Check(t, func(t *rapid.T) {
		for range 40 {
			vals := leafValues{}
			e := genExpr(t, 3, vals)
			bits := rapid.SampledFrom([]int{1, 8, 32, 64, 65, 128}).Draw(t, "needed")
			if e.inWords(bits) && checkWords(t, e, bits, vals) {
				passed[e.Op]++
			}
		}
	})
	for _, op := range []Op{OpAdd, OpSub, OpShl, OpShr, OpAnd, OpOr, OpNot, OpTwoComp, OpUSatCast, OpCond} {
		if passed[op] == 0 {
			t.Errorf("operation %s has never passed", opName(&Expr{Op: op}))
		}
	}
}

// checkWords compares the lowest bits of e. It returns false if e has no value.
func checkWords(t *rapid.T, e *Expr, bits int, vals leafValues) bool {
	want, ok := unbounded(e, vals)
	if !ok {
		return false
	}
	m := machine{t, vals}
	var have *big.Int
	if bits <= word || e.fits() {
		have = new(big.Int).SetUint64(m.word(e))
	} else {
		have = m.wide(e)
	}
	if e.Bits > 0 {
		bits = min(bits, e.Bits)
	}
	if have, want := wrap(have, bits, false), wrap(want, bits, false); have.Cmp(want) != 0 {
		t.Fatalf("operation %s gives %#x in words, want %#x (%d bits)", opName(e), have, want, bits)
	}
	return true
}
