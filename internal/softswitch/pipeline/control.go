package pipeline

import (
	"math/big"
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// A block is a part of a control: statements without a branch, and the block that follows.
type block struct {
	run  []stmt
	kind blockKind
	test test      // blockTest
	cond cond      // blockCond
	tab  *tableRun // blockTable
	yes  *block    // if the condition holds; for blockExit: unless the control has been left
	no   *block
}

type blockKind uint8

const (
	blockEnd   blockKind = iota // the control ends
	blockTest                   // a condition that needs no call
	blockCond                   // any other condition
	blockTable                  // a table
	blockExit                   // what ran may have exited the control
)

// apply runs a control.
func (b *block) apply(pk *Packet) {
	for b != nil {
		for _, s := range b.run {
			s(pk)
		}
		switch b.kind {
		case blockTest:
			if b.test.holds(pk.w) {
				b = b.yes
			} else {
				b = b.no
			}
		case blockCond:
			if b.cond(pk) {
				b = b.yes
			} else {
				b = b.no
			}
		case blockTable:
			b = b.tab.apply(pk)
			if pk.exited {
				return
			}
		case blockExit:
			if pk.exited {
				return
			}
			b = b.yes
		default:
			return
		}
	}
}

// A control is compiled node by node, each once.
type control struct {
	*compiler
	blocks map[program.Node]*block
	open   map[program.Node]bool // nodes whose successors are being compiled
}

// control compiles a control from its first node.
func (c *compiler) control(first program.Node) *block {
	t := &control{c, map[program.Node]*block{}, map[program.Node]bool{}}
	return t.block(first)
}

// block compiles a node and the nodes after it.
func (t *control) block(n program.Node) *block {
	if n.Kind == program.NodeEnd {
		return nil
	}
	if b, ok := t.blocks[n]; ok {
		return b
	}
	if t.open[n] {
		t.fail("a control that goes in circles")
		return nil
	}
	t.open[n] = true
	var b *block
	if n.Kind == program.NodeTable {
		b = t.table(n.Index)
	} else {
		b = t.conditional(&t.prog.Conditionals[n.Index])
	}
	t.blocks[n] = b
	return b
}

func (t *control) conditional(k *program.Conditional) *block {
	yes, no := t.block(k.True), t.block(k.False)
	t.at(k.Source)
	b := &block{kind: blockCond, yes: yes, no: no}
	if x, ok := t.test(k.Cond); ok {
		b.kind, b.test = blockTest, x
	} else {
		b.cond = t.cond(k.Cond)
	}
	return b
}

// table compiles a table. A table without a key that always calls the same action is compiled to
// that action.
func (t *control) table(i int) *block {
	k := &t.prog.Tables[i]
	if d := k.Default; len(k.Key) == 0 && d != nil && d.ConstAction && d.ConstEntry &&
		k.Counter == program.None && k.Meter == program.None && k.Profile == program.None {
		return t.straight(k)
	}
	r := &tableRun{t: t.p.tables[i], acts: make([]branch, len(t.prog.Actions))}
	for a := range r.acts {
		r.acts[a].run = t.p.actions[a].run
	}
	r.words = make([]uint64, r.t.keyWords)
	for j, f := range k.Key {
		r.key = append(r.key, t.keyParts(&f, r.t.keyAt[j])...)
	}
	if k.Meter != program.None {
		target := t.prog.Meters[k.Meter].Target
		r.meter = t.setter(&program.Expr{Op: program.OpField, Field: target})
	}
	if k.Profile != program.None {
		r.hash = t.selection(&t.prog.Profiles[k.Profile])
	}
	r.hitMiss, r.after = k.HitMiss, t.block(k.After)
	if k.HitMiss {
		r.hit, r.miss = t.block(k.Hit), t.block(k.Miss)
	} else {
		for j, a := range k.Actions {
			r.acts[a].next = t.block(k.Next[j])
		}
	}
	if k.Profile != program.None {
		t.share(r, k)
	}
	return &block{kind: blockTable, tab: r}
}

// share makes the table run its own copies of the actions of its profile's members, which are
// actions of the profile's first table, and continue with its own successors.
func (t *control) share(r *tableRun, k *program.Table) {
	for _, a := range r.t.profile.tables[0].Actions {
		r.acts[a] = r.acts[t.p.own(k.Actions, a)]
	}
}

// straight compiles a table that always calls the same action.
func (t *control) straight(k *program.Table) *block {
	call := k.Default.Call
	next := k.Miss
	for j, a := range k.Actions {
		if a == call.Action && !k.HitMiss {
			next = k.Next[j]
		}
	}
	then := t.block(next)
	t.at(k.Source)
	a := t.action(call.Action, append([]*big.Int{}, call.Args...))
	switch {
	case a.exits:
		return &block{run: a.body, kind: blockExit, yes: then}
	case then == nil:
		return &block{run: a.body}
	}
	b := *then
	b.run = append(a.body[:len(a.body):len(a.body)], then.run...)
	return &b
}

// selection compiles the hash by which a selector selects.
func (t *control) selection(k *program.Profile) num {
	t.at(k.Source)
	var in []program.CalcInput
	for _, f := range k.Input {
		in = append(in, program.CalcInput{Kind: program.CalcField, Field: f})
	}
	return t.calc(k.Algo, in)
}

// A keyPart is a word of a table's key. Fields of invalid headers are 0.
type keyPart struct {
	w, valid int
	mask     uint64
	at       int // word of the key
}

// keyParts compiles a field of a table's key.
func (t *control) keyParts(f *program.KeyField, at int) []keyPart {
	s, valid := t.slot(f.Field), 0
	if f.Field.Field != program.Valid {
		valid = t.heads[f.Field.Header].valid
	}
	masks := slices.Repeat([]uint64{^uint64(0)}, s.n)
	if f.Mask != nil {
		bigWords(f.Mask, masks)
	}
	var parts []keyPart
	for i := range s.n {
		parts = append(parts, keyPart{w: s.w + i, valid: valid, mask: masks[i], at: at + i})
	}
	return parts
}

// A tableRun applies a table.
type tableRun struct {
	t         *Table
	key       []keyPart
	words     []uint64
	hash      num      // of a selector
	meter     setter   // sets the color of the direct meter; nil: none
	acts      []branch // by action
	hitMiss   bool     // hit and miss determine the next block
	hit, miss *block
	after     *block // without any action
}

// A branch is an action of a table, and the block that follows it.
type branch struct {
	run  stmt // nil: nothing
	next *block
}

// apply looks up the packet, runs the action, and returns the next block.
func (r *tableRun) apply(pk *Packet) *block {
	var e *Entry
	if len(r.key) > 0 && r.t.Len() > 0 {
		for i := range r.key {
			k := &r.key[i]
			r.words[k.at] = pk.w[k.w] & k.mask & -pk.w[k.valid]
		}
		e = r.t.lookup(r.words)
	}
	hit := e != nil
	if !hit {
		e = r.t.def
	}
	then := r.after
	if e != nil {
		e.hit(pk.now, pk.inLen)
		if hit && r.meter != nil {
			r.meter(pk, uint64(e.mark(pk.now, pk.inLen)))
		}
		h := uint64(0)
		if e.selects() {
			h = r.hash(pk)
		}
		if b := e.bound(h); b != nil {
			a := &r.acts[b.action]
			if a.run != nil {
				pk.args = b.args
				a.run(pk)
			}
			then = a.next
		}
	}
	switch {
	case !r.hitMiss:
		return then
	case hit:
		return r.hit
	}
	return r.miss
}
