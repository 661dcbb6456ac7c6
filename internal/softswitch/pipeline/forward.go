package pipeline

import (
	"math/big"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// Programs from p4c copy each input of a hash to a variable first. A copy that
// only the hash reads is left out, and the hash reads the original.

// reads counts how often each field is read, anywhere in a program or by the
// switch itself.
type reads struct {
	prog   *program.Program
	fields map[program.FieldRef]int
	calcs  map[int]int // hash statements, by calculation
}

func countReads(p *program.Program) *reads {
	r := &reads{prog: p, fields: map[program.FieldRef]int{}, calcs: map[int]int{}}
	r.list(p.Std[:])
	for _, st := range p.Parser.States {
		r.stmts(st.Ops)
		r.exprs(st.Key)
	}
	for _, h := range p.Deparser {
		r.head(h)
	}
	for _, k := range p.Calculations {
		for _, in := range k.Input {
			switch in.Kind {
			case program.CalcField:
				r.fields[in.Field]++
			case program.CalcHeader:
				r.head(in.Head)
			}
		}
	}
	for _, k := range p.Checksums {
		r.fields[k.Target]++
		r.calcs[k.Calc]++
		r.expr(k.Cond)
	}
	for _, a := range p.Actions {
		r.stmts(a.Body)
	}
	for _, t := range p.Tables {
		for _, k := range t.Key {
			r.fields[k.Field]++
		}
	}
	for _, k := range p.Conditionals {
		r.expr(k.Cond)
	}
	for _, k := range p.Profiles {
		r.list(k.Input)
	}
	for _, k := range p.Digests {
		r.list(k.Fields)
	}
	for _, k := range p.FieldLists {
		r.list(k.Fields)
	}
	return r
}

func (r *reads) list(fields []program.FieldRef) {
	for _, f := range fields {
		r.fields[f]++
	}
}

func (r *reads) head(i int) {
	for j := range r.prog.Headers[i].Fields {
		r.fields[program.FieldRef{Header: i, Field: j}]++
	}
}

func (r *reads) stack(i int) {
	for _, h := range r.prog.Stacks[i].Headers {
		r.head(h)
	}
}

func (r *reads) exprs(es []*program.Expr) {
	for _, e := range es {
		r.expr(e)
	}
}

func (r *reads) expr(e *program.Expr) {
	if e == nil {
		return
	}
	switch e.Op {
	case program.OpField:
		r.fields[e.Field]++
	case program.OpStackField, program.OpStackElem:
		r.stack(e.Stack)
	}
	r.exprs([]*program.Expr{e.Left, e.Right, e.Cond})
}

func (r *reads) stmts(body []program.Stmt) {
	for i := range body {
		s := &body[i]
		if s.Dst != nil {
			r.expr(s.Dst.Left) // an index
		}
		r.exprs([]*program.Expr{s.X, s.Y})
		r.exprs(s.Exprs)
		switch s.Op {
		case program.StAssignVar:
			r.fields[s.Src]++
		case program.StAssignHeader:
			r.head(s.Head2)
		case program.StAssignStack:
			r.stack(s.Stack2)
		case program.StPush, program.StPop:
			r.stack(s.Stack)
		case program.StHash:
			r.calcs[s.Calc]++
		}
	}
}

// A source is what a calculation reads in place of a copy.
type source struct {
	konst *big.Int // a constant, or
	slot  slot     // a field, no matter whether its header is valid
}

// forward finds the copies in an action without jumps that can be left out. It
// returns which statements those are, and what the calculations read instead.
func (c *compiler) forward(body []program.Stmt) (skip []bool, instead map[program.FieldRef]source) {
	skip, instead = make([]bool, len(body)), map[program.FieldRef]source{}
	for i := range body {
		if body[i].Op != program.StHash || c.reads.calcs[body[i].Calc] != 1 {
			continue
		}
		for _, in := range c.prog.Calculations[body[i].Calc].Input {
			if in.Kind != program.CalcField || c.reads.fields[in.Field] != 1 || !c.heads[in.Field.Header].meta {
				continue
			}
			if j, src, ok := c.copied(body[:i], in.Field); ok {
				skip[j], instead[in.Field] = true, src
			}
		}
	}
	return skip, instead
}

// copied finds the copy of something to a field, if what was copied is still the
// same at the end of the statements.
func (c *compiler) copied(body []program.Stmt, f program.FieldRef) (int, source, bool) {
	written := map[int]bool{} // by word
	for j := len(body) - 1; j >= 0; j-- {
		s := &body[j]
		to := s.Field
		switch s.Op {
		case program.StAssign:
			if s.Dst.Op != program.OpField {
				return 0, source{}, false
			}
			to = s.Dst.Field
		case program.StAssignVar:
		default:
			return 0, source{}, false
		}
		if to == f {
			src, ok := c.source(s, c.slot(f))
			return j, src, ok && (src.konst != nil || !written[src.slot.w])
		}
		written[c.slot(to).w] = true
	}
	return 0, source{}, false
}

// source returns what a copy to a field copies.
func (c *compiler) source(s *program.Stmt, to slot) (source, bool) {
	if s.Op == program.StAssignVar {
		return source{slot: c.slot(s.Src)}, true
	}
	if k := c.constant(s.X); k != nil {
		return source{konst: k}, true
	}
	if s.X.Op != program.OpField {
		return source{}, false
	}
	from := c.slot(s.X.Field)
	ok := from.n == to.n && (from.n == 1 && !from.signed || from.bits == to.bits)
	from.bits = to.bits
	return source{slot: from}, ok
}
