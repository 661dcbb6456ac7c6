package pipeline

import (
	"math"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// A test is a condition that needs no call: whether a part of a word is a
// constant.
type test struct {
	part
	k       uint64
	negated bool // the other way round
}

// holds reports whether the test does.
func (t *test) holds(w []uint64) bool {
	return (w[t.w]>>(t.r&63)&t.mask == t.k) != t.negated
}

// test returns the condition as a test, if it is one.
func (c *compiler) test(e *program.Expr) (test, bool) {
	if i, ok := c.boolWord(e); ok {
		return test{part: part{w: i, mask: 1}, k: 1}, true
	}
	switch e.Op {
	case program.OpLNot:
		t, ok := c.test(e.Left)
		t.negated = !t.negated
		return t, ok
	case program.OpEq, program.OpNe:
		l, r := e.Left, e.Right
		if _, ok := c.konst(l); ok {
			l, r = r, l
		}
		p, ok := c.operand(l)
		k := c.constant(r)
		if !ok || k == nil || k.Sign() < 0 || k.BitLen() > 64 || !fits(l) {
			return test{}, false
		}
		v := k.Uint64()
		if v>>p.l<<p.l != v {
			return test{}, false // bits that the part does not have
		}
		return test{part: part{w: p.w, r: p.r, mask: p.mask}, k: v >> p.l, negated: e.Op == program.OpNe}, true
	}
	return test{}, false
}

func (t test) cond() cond {
	return func(pk *Packet) bool { return t.holds(pk.w) }
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
	case program.OpCond:
		t, x, y := c.cond(e.Cond), c.cond(e.Left), c.cond(e.Right)
		return func(pk *Packet) bool {
			if t(pk) {
				return x(pk)
			}
			return y(pk)
		}
	}
	if !e.Bool {
		x := c.num(e)
		return func(pk *Packet) bool { return x(pk) != 0 }
	}
	c.fail("operation %d in a condition", e.Op)
	return func(*Packet) bool { return false }
}

// terms collects the operands of a chain of one logical operation.
func terms(op program.Op, e *program.Expr, to []*program.Expr) []*program.Expr {
	if e.Op != op {
		return append(to, e)
	}
	return terms(op, e.Right, terms(op, e.Left, to))
}

// logic compiles chains of and, or.
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

// testChain is the and, or the or, of tests.
func testChain(ts []test, and bool) cond {
	return func(pk *Packet) bool {
		for i := range ts {
			if ts[i].holds(pk.w) != and {
				return !and
			}
		}
		return and
	}
}

// compare compiles comparisons of two numbers. Those with a constant have closures of
// their own.
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

// compareParts compares two parts of words, neither of which is signed.
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

// interval returns which x compare with k: those from lo on for which x-lo, modulo
// 2^64, is at most span. Without some there are none.
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
