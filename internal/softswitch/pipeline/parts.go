package pipeline

import "github.com/mcrdma/mcrdma/internal/softswitch/program"

// Slices, concatenations and masks of fields are the or of parts of words. p4c turns them into long
// chains of shifts, ands and ors.

// parts returns an expression as the or of parts and a constant, if it has that form.
func (c *compiler) parts(e *program.Expr) (ps []part, konst uint64, ok bool) {
	if e.Bool {
		return nil, 0, false
	}
	if k, ok := c.konst(e); ok {
		return nil, k, true
	}
	if i, ok := c.word(e); ok {
		return []part{{w: i, mask: ^uint64(0)}}, 0, true
	}
	switch e.Op {
	case program.OpOr:
		l, k, ok := c.parts(e.Left)
		if !ok {
			return nil, 0, false
		}
		r, m, ok := c.parts(e.Right)
		return append(l, r...), k | m, ok
	case program.OpAnd:
		mask, ok := c.konst(e.Right)
		if !ok {
			return nil, 0, false
		}
		ps, konst, ok = c.parts(e.Left)
		for i := range ps {
			ps[i].mask &= mask >> ps[i].l
		}
		return ps, konst & mask, ok
	case program.OpShl, program.OpShr:
		n, ok := c.konst(e.Right)
		if !ok || n >= 64 || e.Op == program.OpShr && !within(e.Left, 64) {
			return nil, 0, false
		}
		ps, konst, ok = c.parts(e.Left)
		if e.Op == program.OpShr {
			return shiftRight(ps, uint8(n)), konst >> n, ok
		}
		return shiftLeft(ps, uint8(n)), konst << n, ok
	}
	return nil, 0, false
}

// shiftLeft shifts parts, and drops those that leave the word.
func shiftLeft(ps []part, n uint8) []part {
	kept := ps[:0]
	for _, p := range ps {
		if p.l += n; p.l < 64 {
			kept = append(kept, p)
		}
	}
	return kept
}

// shiftRight shifts parts of a number that fits in one word.
func shiftRight(ps []part, n uint8) []part {
	kept := ps[:0]
	for _, p := range ps {
		if p.l >= n {
			p.l -= n
			kept = append(kept, p)
			continue
		}
		p.mask >>= n - p.l
		if p.r, p.l = p.r+n-p.l, 0; p.r < 64 {
			kept = append(kept, p)
		}
	}
	return kept
}

// partsNum compiles the or of parts and a constant.
func partsNum(ps []part, k uint64) num {
	switch {
	case len(ps) == 0:
		return func(*Packet) uint64 { return k }
	case len(ps) == 1 && k == 0:
		p := ps[0]
		return func(pk *Packet) uint64 { return p.of(pk.w) }
	}
	return func(pk *Packet) uint64 {
		v := k
		for i := range ps {
			v |= ps[i].of(pk.w)
		}
		return v
	}
}

// operand returns an expression that is a part of a word.
func (c *compiler) operand(e *program.Expr) (part, bool) {
	ps, k, ok := c.parts(e)
	if !ok || len(ps) != 1 || k != 0 {
		return part{}, false
	}
	return ps[0], true
}
