package pipeline

import (
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// An emission writes a header if it is valid.
type emission struct {
	valid     int
	pre, post []chunk // before and after the varbit field
	varb      int     // its word, or -1
}

// deparser is the compiled deparser. It owns the frame that it writes.
type deparser struct {
	updates []stmt
	heads   []emission
	fixed   int // bytes of all headers without varbit fields
	out     []byte
	n       int // bytes of the last frame before it was truncated
}

// deparser compiles the deparser.
func (c *compiler) deparser() *deparser {
	d := &deparser{}
	for _, i := range c.prog.Deparser {
		h := &c.heads[i]
		c.at(c.prog.Headers[i].Source)
		c.whole(h)
		before, after := h.split()
		e := emission{valid: h.valid, varb: h.varb}
		e.pre, _ = chunksOf(itemsOf(before))
		e.post, _ = chunksOf(itemsOf(after))
		d.heads = append(d.heads, e)
		d.fixed += h.bytes
	}
	for i := range c.prog.Checksums {
		if k := &c.prog.Checksums[i]; k.Update {
			d.updates = append(d.updates, c.update(k))
		}
	}
	return d
}

// deparse updates checksums and writes the headers and the unparsed rest. The returned frame is
// valid until the next call.
func (d *deparser) deparse(pk *Packet) []byte {
	for _, f := range d.updates {
		f(pk)
	}
	rest := pk.rest()
	d.out = room(d.out, d.fixed+len(rest))
	n, used := 0, d.fixed+len(rest)
	for i := range d.heads {
		e := &d.heads[i]
		if pk.w[e.valid] == 0 {
			continue
		}
		n += store(e.pre, pk.w, d.out[n:])
		if e.varb >= 0 {
			v := pk.varbit(pk.w[e.varb])
			used += len(v)
			d.out = room(d.out, used)
			n += copy(d.out[n:], v)
			n += store(e.post, pk.w, d.out[n:])
		}
	}
	n += copy(d.out[n:], rest)
	d.n = n
	return d.out[:min(n, pk.keep)]
}

// whole returns the last frame, untruncated.
func (d *deparser) whole() []byte { return d.out[:d.n] }

// update compiles the update of a checksum.
func (c *compiler) update(k *program.Checksum) stmt {
	c.at(k.Source)
	h := c.calcs(k.Calc)
	set := c.setter(&program.Expr{Op: program.OpField, Field: k.Target})
	if k.Cond == nil {
		return func(pk *Packet) { set(pk, h(pk)) }
	}
	t := c.cond(k.Cond)
	return func(pk *Packet) {
		if t(pk) {
			set(pk, h(pk))
		}
	}
}

// verify compiles the verification of checksums, each as a condition.
func (c *compiler) verify() []cond {
	var all []cond
	for i := range c.prog.Checksums {
		k := &c.prog.Checksums[i]
		if !k.Verify {
			continue
		}
		c.at(k.Source)
		h, valid := c.calcs(k.Calc), c.heads[k.Target.Header].valid
		target := c.num(&program.Expr{Op: program.OpField, Field: k.Target})
		when := func(*Packet) bool { return true }
		if k.Cond != nil {
			when = c.cond(k.Cond)
		}
		all = append(all, func(pk *Packet) bool {
			return pk.w[valid] == 0 || !when(pk) || h(pk) == target(pk)
		})
	}
	return all
}
