package pipeline

import "github.com/mcrdma/mcrdma/internal/softswitch/program"

// A test is a condition that needs no call: whether a part of a word equals a constant.
type test struct {
	part
	k       uint64
	negated bool // not equal
}

// holds evaluates the test.
func (t *test) holds(w []uint64) bool {
	return (w[t.w]>>(t.r&63)&t.mask == t.k) != t.negated
}

// test returns the condition as a test, if it has that form.
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
			return test{}, false // the constant has bits outside the part
		}
		return test{part: part{w: p.w, r: p.r, mask: p.mask}, k: v >> p.l, negated: e.Op == program.OpNe}, true
	}
	return test{}, false
}

func (t test) cond() cond {
	return func(pk *Packet) bool { return t.holds(pk.w) }
}

// testChain is the conjunction or disjunction of tests.
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

// terms collects the operands of a chain of one logical operation.
func terms(op program.Op, e *program.Expr, to []*program.Expr) []*program.Expr {
	if e.Op != op {
		return append(to, e)
	}
	return terms(op, e.Right, terms(op, e.Left, to))
}
