package pipeline

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// The fields that random expressions are of: header 2 of exprProgram, widths with
// signed ones negative; and those of the stack's elements.
var (
	exprFields  = []int{1, 3, 8, 16, 24, 32, 48, 64, 65, 100, 128, 192, -7, -8, -16, -33, -64, -128}
	elemFields  = []int{8, 64, 100}
	destination = []int{1, 8, 24, 32, 64, 65, 128}
)

// exprProgram has the fields to compute with and to assign to.
func exprProgram() *program.Program {
	p := tiny()
	add := func(name string, meta bool, widths []int, stack int) {
		h := program.Header{Name: name, Metadata: meta, Stack: stack}
		for _, n := range widths {
			f := program.Field{Name: "f", Bits: n}
			if n < 0 {
				f.Bits, f.Signed = -n, true
			}
			h.Fields = append(h.Fields, f)
			h.Bits += f.Bits
		}
		p.Headers = append(p.Headers, h)
	}
	p.Headers = p.Headers[:2]
	add("from", true, exprFields, program.None)
	add("e0", false, elemFields, 0)
	add("e1", false, elemFields, 0)
	add("to", true, destination, program.None)
	p.Stacks = []program.Stack{{Name: "s", Headers: []int{3, 4}}}
	p.Actions[0].Params = []program.Param{{Name: "n", Bits: 20}, {Name: "w", Bits: 90}}
	return p
}

// A sample makes random expressions within what Load lets through, and works them
// out as bmv2 does, with integers of any size.
type sample struct {
	*rand.Rand
	p  *Pipeline
	c  *compiler
	pk *Packet
}

func (s *sample) width() int { return []int{1, 4, 8, 16, 24, 32, 48, 63, 64}[s.IntN(9)] }

func (s *sample) number(bits int) *big.Int {
	v := new(big.Int)
	for range (bits + 63) / 64 {
		v.Lsh(v, 64).Or(v, new(big.Int).SetUint64(s.Uint64()))
	}
	switch s.IntN(5) {
	case 0:
		v.SetInt64(int64(s.IntN(4)))
	case 1:
		v.Sub(v.Lsh(big.NewInt(1), uint(bits)), big.NewInt(int64(1+s.IntN(2))))
	}
	return v.And(v, ones(bits))
}

func ones(bits int) *big.Int {
	return new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(bits)), big.NewInt(1))
}

func (s *sample) constant(bits int) *program.Expr {
	return &program.Expr{Op: program.OpConst, Const: s.number(bits), Bits: bits}
}

// leaf returns something unsigned of at most that many bits.
func (s *sample) leaf(most int) *program.Expr {
	for {
		switch s.IntN(8) {
		case 0, 1:
			return s.constant(1 + s.IntN(most))
		case 2:
			i := s.IntN(2)
			if bits := s.c.params[i].Bits; bits <= most {
				return &program.Expr{Op: program.OpParam, Index: i, Bits: bits}
			}
		case 3:
			i := s.IntN(len(elemFields))
			if elemFields[i] <= most {
				index := field(2, s.IntN(2), 3)
				return &program.Expr{Op: program.OpStackElem, Index: i, Left: index, Bits: elemFields[i]}
			}
		default:
			i := s.IntN(len(exprFields))
			if n := exprFields[i]; n > 0 && n <= most {
				return field(2, i, n)
			}
		}
	}
}

func mask(e *program.Expr, bits int) *program.Expr {
	k := &program.Expr{Op: program.OpConst, Const: ones(bits), Bits: bits}
	return &program.Expr{Op: program.OpAnd, Left: e, Right: k, Bits: bits}
}

// unsigned returns an unsigned number of at most 64 bits.
func (s *sample) unsigned(depth int) *program.Expr {
	if depth == 0 {
		return s.leaf(64)
	}
	l, r := s.unsigned(depth-1), s.unsigned(s.IntN(depth))
	most := max(l.Bits, r.Bits)
	switch s.IntN(15) {
	case 14: // shifted out and back in
		e := mask(binaryOf(program.OpShl, l, s.constant(6), l.Bits+63), s.width())
		e = mask(binaryOf(program.OpShl, e, s.constant(6), e.Bits+63), s.width())
		return binaryOf(program.OpShr, binaryOf(program.OpOr, e, s.leaf(16), max(e.Bits, 16)), s.constant(6), max(e.Bits, 16))
	case 0:
		return mask(binaryOf(program.OpAdd, l, r, most+1), s.width())
	case 1:
		e := binaryOf(program.OpSub, l, r, most+1)
		e.Signed = true
		return mask(e, s.width())
	case 2:
		return mask(binaryOf(program.OpMul, l, r, l.Bits+r.Bits), s.width())
	case 3:
		by := s.constant(6)
		return mask(binaryOf(program.OpShl, l, by, l.Bits+63), s.width())
	case 4:
		return mask(binaryOf(program.OpShl, l, s.leaf(8), 0), s.width())
	case 5:
		return binaryOf(program.OpShr, l, []*program.Expr{s.constant(7), s.leaf(8)}[s.IntN(2)], l.Bits)
	case 6:
		return binaryOf(program.OpOr, l, r, most)
	case 7:
		return binaryOf(program.OpXor, l, r, most)
	case 8:
		return binaryOf(program.OpAnd, l, r, most)
	case 9:
		return mask(&program.Expr{Op: program.OpNot, Left: l, Bits: l.Bits + 1, Signed: true}, s.width())
	case 10:
		return &program.Expr{Op: program.OpCond, Cond: s.boolean(depth - 1), Left: l, Right: r, Bits: most}
	case 11:
		return &program.Expr{Op: program.OpB2D, Left: s.boolean(depth - 1), Bits: 1}
	case 12: // saturated
		l, r = s.leaf(32), s.leaf(32)
		e := binaryOf([]program.Op{program.OpAdd, program.OpSub}[s.IntN(2)], l, r, 34)
		e.Signed = true
		w := s.IntN(60) + 1
		return binaryOf(program.OpUSatCast, e, s.widthOf(w), w)
	}
	// A slice of a wide number.
	w := s.wide(depth - 1)
	return mask(binaryOf(program.OpShr, w, s.constant(7), w.Bits), s.width())
}

func (s *sample) widthOf(n int) *program.Expr { return constant(int64(n), 8) }

// signed returns a signed number of at most 64 bits.
func (s *sample) signed(depth int) *program.Expr {
	twos := func(e *program.Expr) *program.Expr {
		w := []int{2, 7, 8, 16, 33, 64}[s.IntN(6)]
		e = binaryOf(program.OpTwoComp, e, s.widthOf(w), w)
		e.Signed = true
		return e
	}
	if depth == 0 && s.IntN(4) == 0 {
		v := new(big.Int).Neg(s.number(7))
		return &program.Expr{Op: program.OpConst, Const: v, Bits: 8, Signed: true}
	}
	if depth == 0 {
		i := 12 + s.IntN(5)
		e := field(2, i, -exprFields[i])
		e.Signed = true
		return e
	}
	l, r := s.signed(depth-1), s.signed(s.IntN(depth))
	most := max(l.Bits, r.Bits)
	signed := func(e *program.Expr) *program.Expr {
		e.Signed = true
		return e
	}
	switch s.IntN(8) {
	case 0:
		return twos(signed(binaryOf(program.OpAdd, l, r, most+1)))
	case 1:
		return twos(signed(binaryOf(program.OpSub, l, r, most+1)))
	case 2:
		return twos(signed(binaryOf(program.OpMul, l, r, l.Bits+r.Bits)))
	case 3:
		return signed(binaryOf(program.OpShr, l, s.leaf(8), l.Bits))
	case 4:
		return twos(s.unsigned(depth - 1))
	case 5:
		w := 2 + s.IntN(50)
		return signed(binaryOf(program.OpSatCast, l, s.widthOf(w), w))
	case 6:
		w := 2 + s.IntN(50)
		return signed(binaryOf(program.OpSatCast, s.leaf(64), s.widthOf(w), w))
	}
	return signed(binaryOf(program.OpXor, l, r, most))
}

// wide returns an unsigned number of any width.
func (s *sample) wide(depth int) *program.Expr {
	if depth == 0 {
		return s.leaf(192)
	}
	l, r := s.wide(depth-1), s.wide(s.IntN(depth))
	most := max(l.Bits, r.Bits)
	switch s.IntN(8) {
	case 0:
		return binaryOf(program.OpAnd, l, r, most)
	case 1:
		return binaryOf(program.OpOr, l, r, most)
	case 2:
		return binaryOf(program.OpXor, l, r, most)
	case 3:
		return binaryOf(program.OpShr, l, s.constant(7), l.Bits)
	case 4:
		by := s.constant(7)
		return mask(binaryOf(program.OpShl, l, by, l.Bits+127), 20+s.IntN(200))
	case 5:
		return mask(&program.Expr{Op: program.OpNot, Left: l, Bits: l.Bits + 1, Signed: true}, 20+s.IntN(200))
	case 6:
		return &program.Expr{Op: program.OpCond, Cond: s.boolean(depth - 1), Left: l, Right: r, Bits: most}
	}
	return s.unsigned(depth)
}

// boolean returns a boolean.
func (s *sample) boolean(depth int) *program.Expr {
	b := func(op program.Op, l, r *program.Expr) *program.Expr {
		return &program.Expr{Op: op, Left: l, Right: r, Bool: true, Bits: 1}
	}
	if depth == 0 {
		switch s.IntN(4) {
		case 0:
			return &program.Expr{Op: program.OpBool, Const: big.NewInt(int64(s.IntN(2))), Bool: true, Bits: 1}
		case 1:
			return &program.Expr{Op: program.OpValid, Head: s.IntN(5), Bool: true, Bits: 1}
		case 2:
			return b(program.OpD2B, field(2, 0, 1), nil)
		}
		return b(program.OpEq, s.leaf(64), s.constant(3))
	}
	order := program.OpEq + program.Op(s.IntN(6))
	switch s.IntN(10) {
	case 9: // both fit in 63 bits and a sign
		return b(order, s.leaf(48), s.signed(0))
	case 0:
		return b(program.OpLAnd, s.boolean(depth-1), s.boolean(s.IntN(depth)))
	case 1:
		return b(program.OpLOr, s.boolean(depth-1), s.boolean(s.IntN(depth)))
	case 2:
		return b(program.OpLNot, s.boolean(depth-1), nil)
	case 3, 4:
		return b(order, s.unsigned(depth-1), s.unsigned(s.IntN(depth)))
	case 5:
		return b(order, s.signed(depth-1), s.signed(s.IntN(depth)))
	case 6:
		return b(program.OpEq+program.Op(s.IntN(2)), s.wide(depth-1), s.wide(s.IntN(depth)))
	case 7:
		return b(program.OpD2B, s.wide(depth-1), nil)
	}
	return &program.Expr{Op: program.OpCond, Cond: s.boolean(depth - 1), Left: s.boolean(0), Right: s.boolean(0), Bool: true, Bits: 1}
}

// words reads a field as an integer.
// any returns a number that has to be computed below an OpBig.
func (s *sample) any(depth int) *program.Expr {
	if depth == 0 {
		if i := s.IntN(len(exprFields) + 3); i < len(exprFields) {
			e := field(2, i, max(exprFields[i], -exprFields[i]))
			e.Signed = exprFields[i] < 0
			return e
		}
		return s.leaf(192)
	}
	ops := []program.Op{
		program.OpAdd, program.OpSub, program.OpMul, program.OpAnd, program.OpOr, program.OpXor, program.OpNot, program.OpShl,
		program.OpShr, program.OpTwoComp, program.OpSatCast, program.OpUSatCast, program.OpCond, program.OpB2D,
	}
	e := &program.Expr{Op: ops[s.IntN(len(ops))], Left: s.any(depth - 1), Right: s.any(s.IntN(depth))}
	order := &program.Expr{Op: program.OpEq + program.Op(s.IntN(6)), Left: s.any(0), Right: s.any(depth - 1), Bool: true, Bits: 1}
	switch e.Op {
	case program.OpShl, program.OpShr:
		e.Right = field(2, 2, 8)
	case program.OpTwoComp, program.OpSatCast, program.OpUSatCast:
		e.Right = s.widthOf(1 + s.IntN(140))
	case program.OpCond:
		e.Cond = order
	case program.OpB2D:
		e.Left = &program.Expr{Op: program.OpLAnd + program.Op(s.IntN(2)), Left: order, Right: s.boolean(1), Bool: true, Bits: 1}
	}
	return e
}

func (s *sample) words(at slot) *big.Int {
	v := new(big.Int)
	for _, w := range s.pk.w[at.w : at.w+at.n] {
		v.Lsh(v, 64).Or(v, new(big.Int).SetUint64(w))
	}
	if at.signed && v.Bit(at.bits-1) == 1 {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), uint(at.bits)))
	}
	return v
}

func boolInt(b bool) *big.Int {
	if b {
		return big.NewInt(1)
	}
	return new(big.Int)
}

// eval works an expression out.
func (s *sample) eval(e *program.Expr) *big.Int {
	switch e.Op {
	case program.OpConst, program.OpBool:
		return e.Const
	case program.OpField:
		return s.words(s.c.slot(e.Field))
	case program.OpParam:
		at := slot{w: s.c.offs[e.Index], n: wordsOf(s.c.params[e.Index].Bits)}
		v := new(big.Int)
		for _, w := range s.pk.args[at.w : at.w+at.n] {
			v.Lsh(v, 64).Or(v, new(big.Int).SetUint64(w))
		}
		return v
	case program.OpStackElem:
		if i := s.eval(e.Left).Int64(); i < 2 {
			return s.words(s.c.slot(program.FieldRef{Header: 3 + int(i), Field: e.Index}))
		}
		return new(big.Int)
	case program.OpValid:
		return boolInt(s.pk.w[s.c.heads[e.Head].valid] != 0)
	case program.OpCond:
		if s.eval(e.Cond).Sign() != 0 {
			return s.eval(e.Left)
		}
		return s.eval(e.Right)
	case program.OpD2B:
		return boolInt(s.eval(e.Left).Sign() != 0)
	case program.OpB2D, program.OpBig:
		return s.eval(e.Left)
	case program.OpNot:
		return new(big.Int).Not(s.eval(e.Left))
	case program.OpLNot:
		return boolInt(s.eval(e.Left).Sign() == 0)
	}
	return evalBinary(e.Op, s.eval(e.Left), s.eval(e.Right))
}

func evalBinary(op program.Op, l, r *big.Int) *big.Int {
	v := new(big.Int)
	switch op {
	case program.OpAdd:
		return v.Add(l, r)
	case program.OpSub:
		return v.Sub(l, r)
	case program.OpMul:
		return v.Mul(l, r)
	case program.OpShl:
		return v.Lsh(l, uint(r.Int64()))
	case program.OpShr:
		return v.Rsh(l, uint(r.Int64()))
	case program.OpAnd:
		return v.And(l, r)
	case program.OpOr:
		return v.Or(l, r)
	case program.OpXor:
		return v.Xor(l, r)
	case program.OpEq:
		return boolInt(l.Cmp(r) == 0)
	case program.OpNe:
		return boolInt(l.Cmp(r) != 0)
	case program.OpLt:
		return boolInt(l.Cmp(r) < 0)
	case program.OpLe:
		return boolInt(l.Cmp(r) <= 0)
	case program.OpGt:
		return boolInt(l.Cmp(r) > 0)
	case program.OpGe:
		return boolInt(l.Cmp(r) >= 0)
	case program.OpLAnd:
		return boolInt(l.Sign() != 0 && r.Sign() != 0)
	case program.OpLOr:
		return boolInt(l.Sign() != 0 || r.Sign() != 0)
	}
	n := uint(r.Int64())
	low, high := new(big.Int), ones(int(n))
	if op != program.OpUSatCast {
		low, high = new(big.Int).Neg(new(big.Int).Lsh(big.NewInt(1), n-1)), ones(int(n)-1)
	}
	if op == program.OpTwoComp {
		if v.And(l, ones(int(n))); v.Cmp(high) > 0 {
			v.Sub(v, new(big.Int).Lsh(big.NewInt(1), n))
		}
		return v
	}
	if v.Set(l); v.Cmp(low) < 0 {
		return low
	}
	if v.Cmp(high) > 0 {
		return high
	}
	return v
}

// fill gives the packet random fields and arguments.
func (s *sample) fill() {
	s.p.fresh(s.pk)
	for h := range s.c.heads {
		hd := &s.c.heads[h]
		if !hd.meta {
			s.pk.w[hd.valid] = uint64(s.IntN(2))
		}
		for _, f := range hd.slots {
			if !f.varb {
				bigWords(s.number(f.bits), s.pk.w[f.w:f.w+f.n])
			}
		}
	}
	s.pk.args = make([]uint64, 3)
	bigWords(s.number(20), s.pk.args[:1])
	bigWords(s.number(90), s.pk.args[1:])
}

// TestExpressions compares compiled expressions and assignments with integers of
// any size.
func TestExpressions(t *testing.T) {
	prog := exprProgram()
	p, err := New(prog, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &sample{Rand: rand.New(rand.NewPCG(7, 8)), p: p, pk: p.pool.packet()}
	s.c = newCompiler(p, p.lay, prog)
	s.c.enter(0, nil)
	for round := range 6000 {
		depth := 1 + s.IntN(4)
		var e *program.Expr
		switch round % 5 {
		case 0:
			e = s.any(depth)
		case 4:
			e = s.unsigned(depth)
		case 1:
			e = s.signed(depth)
		case 2:
			e = s.wide(depth)
		default:
			e = s.boolean(depth)
		}
		if round%50 == 1 {
			e = field(2, len(exprFields)-1, 128) // signed, only moved
		}
		to := s.c.heads[5].slots[s.IntN(len(destination))]
		if e.Bits == 0 || round%3 == 0 {
			e = &program.Expr{Op: program.OpBig, Left: e, Bits: to.bits, Bool: e.Bool}
		}
		if e.Signed {
			to = s.c.heads[5].slots[4] // wider ones are not within the contract
		}
		dst := &program.Expr{Op: program.OpField}
		for i, f := range s.c.heads[5].slots {
			if f.w == to.w {
				dst.Field = program.FieldRef{Header: 5, Field: i}
			}
		}
		run := s.c.stmt(&program.Stmt{Op: program.StAssign, Dst: dst, X: e})
		var is cond
		if e.Bool {
			is = s.c.cond(e)
		}
		if s.c.err != nil {
			t.Fatalf("round %d: %v", round, s.c.err)
		}
		for range 6 {
			s.fill()
			want := s.eval(e)
			if is != nil && is(s.pk) != (want.Sign() != 0) {
				t.Fatalf("round %d: condition is %v, want %v", round, is(s.pk), want)
			}
			run(s.pk)
			want = new(big.Int).And(want, ones(to.bits))
			if got := s.words(to); got.Cmp(want) != 0 {
				t.Fatalf("round %d: %d bits %#x, want %#x", round, to.bits, got, want)
			}
		}
	}
}
