package pipeline

import (
	"strings"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// A setter writes a number to a field, truncated to the field's width.
type setter func(pk *Packet, v uint64)

// setter compiles the destination of an extern's result.
func (c *compiler) setter(dst *program.Expr) setter {
	if dst.Op != program.OpField {
		at, s := c.cell(dst)
		mask, n, st := maskOf(min(s.bits, 64)), s.n, &c.p.stats
		return func(pk *Packet, v uint64) {
			i := at(pk)
			if i < 0 {
				st.BadStackIndex++
				return
			}
			clear(pk.w[i : i+n])
			pk.w[i+n-1] = v & mask
		}
	}
	s := c.slot(dst.Field)
	if s.n > 1 {
		return func(pk *Packet, v uint64) {
			clear(pk.w[s.w : s.w+s.n])
			pk.w[s.w+s.n-1] = v
		}
	}
	d, mask := s.w, maskOf(s.bits)
	return func(pk *Packet, v uint64) { pk.w[d] = v & mask }
}

// hashStmt compiles dst = base + hash mod size.
func (c *compiler) hashStmt(s *program.Stmt) stmt {
	set, h := c.setter(s.Dst), c.calcs(s.Calc)
	base, size := c.num(s.X), c.num(s.Y)
	return func(pk *Packet) {
		n := max(size(pk), 1)
		set(pk, base(pk)+h(pk)%n)
	}
}

// random compiles dst = a random value of lo … hi. If the range is empty, dst stays unchanged.
func (c *compiler) random(s *program.Stmt) stmt {
	set, lo, hi, r := c.setter(s.Dst), c.num(s.X), c.num(s.Y), &c.p.rng
	return func(pk *Packet) {
		if a, b := lo(pk), hi(pk); a <= b {
			set(pk, a+r.below(b-a+1))
		}
	}
}

// registerRead compiles dst = register[i]. If the index is out of range, dst stays unchanged.
func (c *compiler) registerRead(s *program.Stmt) stmt {
	r, i := c.p.registers[s.Register], c.num(s.X)
	if r.words > 1 {
		return c.registerReadWide(s, r, i)
	}
	if s.Dst.Op == program.OpField {
		if f := c.slot(s.Dst.Field); f.n == 1 {
			d, mask := f.w, maskOf(f.bits)
			return func(pk *Packet) {
				if x := i(pk); r.has(x) {
					pk.w[d] = r.cells[x] & mask
				}
			}
		}
	}
	set := c.setter(s.Dst)
	return func(pk *Packet) {
		if x := i(pk); r.has(x) {
			set(pk, r.cells[x])
		}
	}
}

func (c *compiler) registerReadWide(s *program.Stmt, r *Register, i num) stmt {
	if s.Dst.Op != program.OpField {
		c.fail("a register of more than 64 bits read into a stack's element")
		return func(*Packet) {}
	}
	f := c.slot(s.Dst.Field)
	top := maskOf(topBits(f.bits))
	return func(pk *Packet) {
		if v := r.wide(i(pk)); v != nil {
			extend(pk.w[f.w:f.w+f.n], v)
			pk.w[f.w] &= top
		}
	}
}

func (c *compiler) registerWrite(s *program.Stmt) stmt {
	r, i := c.p.registers[s.Register], c.num(s.X)
	if r.words > 1 {
		x, t, top := c.wide(s.Y, r.words), make([]uint64, r.words), maskOf(topBits(r.info.Bits))
		return func(pk *Packet) {
			x(pk, t)
			t[0] &= top
			copy(r.wide(i(pk)), t)
		}
	}
	x := c.num(c.strip(s.Y, r.info.Bits))
	return func(pk *Packet) { r.write(i(pk), x(pk)) }
}

// meter compiles dst = color of a meter. If the index is out of range, dst stays unchanged.
func (c *compiler) meter(s *program.Stmt) stmt {
	m, i, set := c.p.meters[s.Meter], c.num(s.X), c.setter(s.Dst)
	return func(pk *Packet) {
		if x := i(pk); m.has(x) {
			set(pk, uint64(m.mark(x, pk.now, pk.inLen)))
		}
	}
}

// log compiles a message for Options.Log, if there is one.
func (c *compiler) log(s *program.Stmt) stmt {
	out := c.p.opt.Log
	if out == nil {
		return func(*Packet) {}
	}
	var xs []wide
	var vs []match.Value
	for _, e := range s.Exprs {
		n := max(1, wordsOf(e.Bits))
		xs, vs = append(xs, c.wide(e, n)), append(vs, make(match.Value, n))
	}
	parts := strings.Split(s.Text, "{}")
	return func(pk *Packet) {
		var b strings.Builder
		for i, part := range parts {
			b.WriteString(part)
			switch {
			case i == len(parts)-1:
			case i < len(xs):
				xs[i](pk, vs[i])
				b.WriteString(vs[i].Big().String())
			default:
				b.WriteString("{}")
			}
		}
		out(b.String())
	}
}
