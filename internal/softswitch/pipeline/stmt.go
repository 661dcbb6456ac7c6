package pipeline

import (
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// stmt compiles a statement of an action, except jumps, or one that parsers share with actions.
func (c *compiler) stmt(s *program.Stmt) stmt {
	c.at(s.Source)
	switch s.Op {
	case program.StAssign:
		return c.assign(s.Dst, s.X)
	case program.StAssignVar:
		d, x := c.slot(s.Field).w, c.slot(s.Src).w
		return func(pk *Packet) { pk.w[d] = pk.w[x] }
	case program.StAssignHeader:
		return c.assignHeader(s.Head, s.Head2)
	case program.StAssignStack:
		return c.assignStack(s)
	case program.StSetValid:
		return c.setValid(s.Head)
	case program.StSetInvalid:
		return c.setInvalid(s.Head)
	case program.StPick:
		return c.pick(s)
	case program.StPush, program.StPop:
		return c.shiftStack(s)
	case program.StHash:
		return c.hashStmt(s)
	case program.StRandom:
		return c.random(s)
	case program.StRegisterRead:
		return c.registerRead(s)
	case program.StRegisterWrite:
		return c.registerWrite(s)
	case program.StCount:
		x, ctr := c.num(s.X), c.p.counters[s.Counter]
		return func(pk *Packet) { ctr.add(x(pk), pk.inLen) }
	case program.StMeter:
		return c.meter(s)
	case program.StAssert:
		t, st := c.nonZero(s.X), &c.p.stats
		return func(pk *Packet) {
			if !t(pk) {
				st.AssertionFailed++
				pk.failed, pk.exited = true, true
			}
		}
	case program.StLog:
		return c.log(s)
	}
	return c.request(s)
}

// request compiles statements that request an operation after the control.
func (c *compiler) request(s *program.Stmt) stmt {
	switch s.Op {
	case program.StMarkToDrop:
		spec, grp, drop := c.stdField(s.Field), c.stdField(s.Src), uint64(c.p.opt.DropPort)
		return func(pk *Packet) {
			spec.set(pk, drop)
			grp.set(pk, 0)
		}
	case program.StDigest:
		n := s.Digest
		return func(pk *Packet) { pk.digest = n }
	case program.StCloneIngress, program.StCloneEgress:
		x, list := c.num(s.X), s.FieldList
		return func(pk *Packet) { pk.clone, pk.cloneList = sessionID(x(pk)), list }
	case program.StResubmit:
		list := s.FieldList
		return func(pk *Packet) { pk.resubmit = list + 1 }
	case program.StRecirculate:
		list := s.FieldList
		return func(pk *Packet) { pk.recirculate = list + 1 }
	case program.StTruncate:
		x := c.num(s.X)
		return func(pk *Packet) { pk.keep = int(min(uint64(pk.keep), x(pk))) }
	case program.StExit:
		return func(pk *Packet) { pk.exited = true }
	case program.StNop:
		return func(*Packet) {}
	}
	c.fail("statement %d in an action", s.Op)
	return func(*Packet) {}
}

// sessionID limits a clone session as bmv2 does: it saturates at 16 bits and keeps 15 of them.
func sessionID(x uint64) int { return int(min(x, 1<<16-1) & (1<<15 - 1)) }

// assign compiles the assignment to a field. The destination's width is the mask.
func (c *compiler) assign(dst, e *program.Expr) stmt {
	if dst.Op != program.OpField {
		return c.assignElem(dst, e)
	}
	if dst.Field.Field == program.Valid {
		c.fail("an assignment to a header's validity")
	}
	s := c.layout.slot(dst.Field)
	defer c.writes(s) // after the expression, which may read it
	if s.n > 1 {
		return c.assignWide(s, e)
	}
	d, mask := s.w, maskOf(s.bits)
	if k, ok := c.konst(e); ok {
		k &= mask
		return func(pk *Packet) { pk.w[d] = k }
	}
	e = c.strip(e, s.bits)
	fitting := within(e, s.bits)
	if i, ok := c.word(e); ok {
		if fitting {
			return func(pk *Packet) { pk.w[d] = pk.w[i] }
		}
		return func(pk *Packet) { pk.w[d] = pk.w[i] & mask }
	}
	if ps, k, ok := c.parts(e); ok {
		return assignParts(d, ps, k, mask)
	}
	if f := c.increment(d, mask, e); f != nil {
		return f
	}
	x := c.num(e)
	if fitting {
		return func(pk *Packet) { pk.w[d] = x(pk) }
	}
	return func(pk *Packet) { pk.w[d] = x(pk) & mask }
}

// increment compiles the assignment of sums and differences of parts of words and constants, or
// returns nil.
func (c *compiler) increment(d int, mask uint64, e *program.Expr) stmt {
	if e.Op != program.OpAdd && e.Op != program.OpSub {
		return nil
	}
	a, ok := c.operand(e.Left)
	if !ok {
		return nil
	}
	if k, ok := c.konst(e.Right); ok {
		if e.Op == program.OpSub {
			k = -k
		}
		return func(pk *Packet) { pk.w[d] = (a.of(pk.w) + k) & mask }
	}
	b, ok := c.operand(e.Right)
	switch {
	case !ok:
		return nil
	case e.Op == program.OpAdd:
		return func(pk *Packet) { pk.w[d] = (a.of(pk.w) + b.of(pk.w)) & mask }
	}
	return func(pk *Packet) { pk.w[d] = (a.of(pk.w) - b.of(pk.w)) & mask }
}

// assignParts compiles the assignment of slices and concatenations.
func assignParts(d int, ps []part, k, mask uint64) stmt {
	for i := range ps {
		ps[i].mask &= mask >> ps[i].l
	}
	k &= mask
	x := partsNum(ps, k)
	return func(pk *Packet) { pk.w[d] = x(pk) }
}

func (c *compiler) assignWide(s slot, e *program.Expr) stmt {
	x, t, top := c.wide(e, s.n), make([]uint64, s.n), maskOf(topBits(s.bits))
	return func(pk *Packet) {
		x(pk, t)
		t[0] &= top
		copy(pk.w[s.w:], t)
	}
}

// assignElem compiles an assignment to a field of a stack's element. An assignment to a missing
// element has no effect.
func (c *compiler) assignElem(dst, e *program.Expr) stmt {
	at, s := c.cell(dst)
	x, t, top := c.wide(e, s.n), make([]uint64, s.n), maskOf(topBits(s.bits))
	st := &c.p.stats
	return func(pk *Packet) {
		i := at(pk)
		if i < 0 {
			st.BadStackIndex++
			return
		}
		x(pk, t)
		t[0] &= top
		copy(pk.w[i:], t)
	}
}

// assignHeader copies a header, including its validity. If the source is invalid, the fields stay
// unchanged.
func (c *compiler) assignHeader(dst, src int) stmt {
	d, s := c.heads[dst], c.heads[src]
	c.keep(&d)
	c.keep(&s)
	return d.alone(func(pk *Packet) {
		valid := pk.w[s.valid]
		if !d.meta {
			pk.w[d.valid] = valid
		}
		if valid != 0 {
			copy(pk.w[d.lo:d.hi], pk.w[s.lo:s.hi])
		}
	})
}

// pick runs the statement for the element selected by an index, or none if the element is missing.
func (c *compiler) pick(s *program.Stmt) stmt {
	x, st := c.num(s.X), &c.p.stats
	var each []stmt
	for i := range s.Each {
		each = append(each, c.stmt(&s.Each[i]))
	}
	return func(pk *Packet) {
		if i := x(pk); i < uint64(len(each)) {
			each[i](pk)
			return
		}
		st.BadStackIndex++
	}
}

func (c *compiler) assignStack(s *program.Stmt) stmt {
	d, x := c.stacks[s.Stack], c.stacks[s.Stack2]
	var each []stmt
	for i := range d.elems {
		each = append(each, c.assignHeader(d.elems[i], x.elems[i]))
	}
	return func(pk *Packet) {
		pk.w[d.next] = pk.w[x.next]
		for _, f := range each {
			f(pk)
		}
	}
}

// setValid makes a header valid. If it was not, its fields become zero; a varbit field keeps its
// length.
func (c *compiler) setValid(i int) stmt {
	h := c.heads[i]
	return h.alone(func(pk *Packet) {
		if pk.w[h.valid] != 0 {
			return
		}
		n := 0
		if h.varb >= 0 {
			v := zeroed(pk.w[h.varb])
			clear(pk.w[h.lo:h.hi])
			pk.w[h.varb] = v
			n = varLen(v)
		} else {
			clear(pk.w[h.lo:h.hi])
		}
		pk.w[h.valid] = 1
		pk.length += uint64(h.bytes + n)
	})
}

// alone makes the other members of a header's union invalid after f, if the header is valid then.
// The receiver is a value so that closures hold h by value, which is faster.
func (h head) alone(f stmt) stmt {
	if len(h.others) == 0 {
		return f
	}
	valid, others := h.valid, h.others
	return func(pk *Packet) {
		if f(pk); pk.w[valid] != 0 {
			for _, o := range others {
				pk.w[o] = 0
			}
		}
	}
}

func (c *compiler) setInvalid(i int) stmt {
	h := c.heads[i]
	if h.meta {
		return func(*Packet) {}
	}
	return func(pk *Packet) {
		if pk.w[h.valid] == 0 {
			return
		}
		n := h.bytes
		if h.varb >= 0 {
			n += varLen(pk.w[h.varb])
		}
		pk.w[h.valid] = 0
		pk.length -= uint64(n)
	}
}

// swap exchanges two headers of the same type.
func swap(pk *Packet, a, b *head) {
	w := pk.w
	w[a.valid], w[b.valid] = w[b.valid], w[a.valid]
	for i := range a.hi - a.lo {
		w[a.lo+i], w[b.lo+i] = w[b.lo+i], w[a.lo+i]
	}
}

// shiftStack compiles push and pop. Push moves the elements back by n; the first n become invalid,
// except for unions, which bmv2 leaves unchanged. Pop does the same from the other end.
func (c *compiler) shiftStack(s *program.Stmt) stmt {
	st := c.stacks[s.Stack]
	var hs []head
	for _, i := range st.elems {
		hs = append(hs, c.heads[i])
	}
	n := min(s.N*st.width, len(hs))
	next, by, size := st.next, n/st.width, len(hs)/st.width
	if s.Op == program.StPop {
		slices.Reverse(hs)
		by = -by
	}
	return func(pk *Packet) {
		pk.w[next] = uint64(max(0, min(size, int(pk.w[next])+by)))
		for i := len(hs) - 1; i >= n; i-- {
			swap(pk, &hs[i], &hs[i-n])
		}
		if st.union {
			return
		}
		for i := range n {
			pk.w[hs[i].valid] = 0
		}
	}
}
