package pipeline

import (
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
	if len(ts) == 2 && and {
		a, b := ts[0], ts[1]
		return func(pk *Packet) bool { return a.holds(pk.w) && b.holds(pk.w) }
	}
	return func(pk *Packet) bool {
		for i := range ts {
			if ts[i].holds(pk.w) != and {
				return !and
			}
		}
		return and
	}
}

// compare compiles comparisons of two numbers.
func (c *compiler) compare(e *program.Expr) cond {
	equality := e.Op == program.OpEq || e.Op == program.OpNe
	if !fits(e.Left) || !fits(e.Right) {
		if !equality {
			c.fail("an order of numbers of more than 64 bits")
		}
		return c.wideCompare(e.Left, e.Right, e.Op == program.OpEq)
	}
	if l, ok := c.operand(e.Left); ok {
		if r, ok := c.operand(e.Right); ok {
			return compareParts(e.Op, l, r)
		}
		if k, ok := c.konst(e.Right); ok && !e.Right.Signed {
			return comparePart(e.Op, l, k)
		}
	}
	x, y := c.num(e.Left), c.num(e.Right)
	if k, ok := c.konst(e.Right); ok {
		y = nil
		if f := compareNumConst(e, x, k); f != nil {
			return f
		}
		y = c.num(e.Right)
	}
	if (e.Left.Signed || e.Right.Signed) && !equality {
		return compareSigned(e.Op, x, y)
	}
	switch e.Op {
	case program.OpEq:
		return func(pk *Packet) bool { return x(pk) == y(pk) }
	case program.OpNe:
		return func(pk *Packet) bool { return x(pk) != y(pk) }
	case program.OpLt:
		return func(pk *Packet) bool { return x(pk) < y(pk) }
	case program.OpLe:
		return func(pk *Packet) bool { return x(pk) <= y(pk) }
	case program.OpGt:
		return func(pk *Packet) bool { return x(pk) > y(pk) }
	}
	return func(pk *Packet) bool { return x(pk) >= y(pk) }
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
	case program.OpLe:
		return func(pk *Packet) bool { return l.of(pk.w) <= r.of(pk.w) }
	case program.OpGt:
		return func(pk *Packet) bool { return l.of(pk.w) > r.of(pk.w) }
	}
	return func(pk *Packet) bool { return l.of(pk.w) >= r.of(pk.w) }
}

func comparePart(op program.Op, l part, k uint64) cond {
	switch op {
	case program.OpEq:
		return func(pk *Packet) bool { return l.of(pk.w) == k }
	case program.OpNe:
		return func(pk *Packet) bool { return l.of(pk.w) != k }
	case program.OpLt:
		return func(pk *Packet) bool { return l.of(pk.w) < k }
	case program.OpLe:
		return func(pk *Packet) bool { return l.of(pk.w) <= k }
	case program.OpGt:
		return func(pk *Packet) bool { return l.of(pk.w) > k }
	}
	return func(pk *Packet) bool { return l.of(pk.w) >= k }
}

// compareNumConst is for equality, and order of what is not signed; else nil.
func compareNumConst(e *program.Expr, x num, k uint64) cond {
	switch e.Op {
	case program.OpEq:
		return func(pk *Packet) bool { return x(pk) == k }
	case program.OpNe:
		return func(pk *Packet) bool { return x(pk) != k }
	}
	if e.Left.Signed || e.Right.Signed {
		return nil
	}
	switch e.Op {
	case program.OpLt:
		return func(pk *Packet) bool { return x(pk) < k }
	case program.OpLe:
		return func(pk *Packet) bool { return x(pk) <= k }
	case program.OpGt:
		return func(pk *Packet) bool { return x(pk) > k }
	}
	return func(pk *Packet) bool { return x(pk) >= k }
}

func compareSigned(op program.Op, x, y num) cond {
	switch op {
	case program.OpLt:
		return func(pk *Packet) bool { return int64(x(pk)) < int64(y(pk)) }
	case program.OpLe:
		return func(pk *Packet) bool { return int64(x(pk)) <= int64(y(pk)) }
	case program.OpGt:
		return func(pk *Packet) bool { return int64(x(pk)) > int64(y(pk)) }
	}
	return func(pk *Packet) bool { return int64(x(pk)) >= int64(y(pk)) }
}
