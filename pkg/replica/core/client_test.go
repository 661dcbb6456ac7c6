package core

import (
	"math"
	"slices"
)

// client is all clients of the volume, and the judge of what they saw.
type client struct {
	last  int // value that was written
	calls uint64
	ops   []op
	epoch int         // of the history: it begins anew when all acting members have restarted
	floor [blocks]int // ops that are flushed: the last of a block
	base  [blocks]int // the same, when the history began
	acks  []Version   // acknowledged entries of this history
	flush []Version   // flushed entries, the last of each flush
}

type opKind uint8

const (
	opWrite opKind = iota
	opRead
	opFlush
)

const never = math.MaxUint64

// An op is a call of a client, and what came of it.
type op struct {
	kind         opKind
	block, value int
	begun, ended uint64 // ended: never, if it is not known to have
	at           Member
	v            Version
	call         uint64
	epoch        int
	over         bool // it gets no answer any more
}

func (c *client) begin() {
	for b := range blocks { // all blocks are zero
		c.ops = append(c.ops, op{kind: opWrite, block: b, value: -b - 1})
		c.floor[b] = b
	}
}

func (c *client) clone() client {
	x := *c
	x.ops, x.acks, x.flush = slices.Clone(c.ops), slices.Clone(c.acks), slices.Clone(c.flush)
	return x
}

// write writes at a host, if that takes it.
func (c *client) write(w *world, h *host, block int) bool {
	v, ok := h.n.Write(h.clock(w.now))
	if !ok {
		return false
	}
	c.last++
	w.order++
	w.data[v] = write{block, c.last}
	h.mem[v] = true
	c.ops = append(c.ops, op{kind: opWrite, block: block, value: c.last, begun: w.order, ended: never, at: h.n.self, v: v, epoch: c.epoch})
	w.logf("write %d to %d at %d: %v", c.last, block, h.id, v)
	w.settle(h)
	return true
}

func (c *client) read(w *world, h *host, block int) bool {
	iv, index, ok := h.n.Read(h.clock(w.now))
	if !ok {
		return false
	}
	value := h.store.blocks[block]
	for i := h.store.to + 1; i <= index; i++ {
		v, _ := h.at(i)
		if x := w.data[v]; x.block == block {
			value = x.value
		}
	}
	if value == 0 {
		value = -block - 1
	}
	w.order++
	c.ops = append(c.ops, op{kind: opRead, block: block, value: value, begun: w.order, ended: never, at: h.n.self, epoch: c.epoch})
	w.later(w.soon(), event{kind: evReadDone, host: h.n.self, seq: uint64(len(c.ops) - 1), iv: iv})
	return true
}

func (c *client) readDone(w *world, h *host, e event) {
	o := &c.ops[e.seq]
	if h.n.ReadDone(e.iv, h.clock(w.now)) && !o.over {
		w.tally.reads++
		w.order++
		o.ended = w.order
		w.logf("read %d from %d at %d", o.value, o.block, h.id)
		if p := w.hosts[w.osdmap.Primary.ID]; w.osdmap.Since > 0 && p.n != nil && p != h && p.n.lead != nil && p.n.lead.state == Active {
			w.fail("%d serves a read, and %d is active", h.id, p.id)
		}
	}
}

func (c *client) flushAll(w *world, h *host) bool {
	if h.n.lead == nil {
		return false
	}
	c.calls++
	w.order++
	v := h.n.log.head()
	c.ops = append(c.ops, op{kind: opFlush, begun: w.order, ended: never, at: h.n.self, v: v, call: c.calls, epoch: c.epoch})
	if !h.n.Flush(c.calls, h.clock(w.now)) {
		c.ops = c.ops[:len(c.ops)-1]
		return false
	}
	w.settle(h)
	return true
}

func (c *client) acked(w *world, h *host, index uint64) {
	w.order++
	for i := range c.ops {
		o := &c.ops[i]
		if o.kind == opWrite && o.at == h.n.self && o.v.Index <= index && o.ended == never && !o.over && h.n.log.has(o.v) {
			w.tally.acked++
			o.ended = w.order
			w.committed(o.v, "acknowledged")
			c.acks = append(c.acks, o.v)
		}
	}
}

func (c *client) flushed(w *world, h *host, call uint64) {
	w.order++
	for i := range c.ops {
		o := &c.ops[i]
		if o.kind != opFlush || o.call != call || o.over {
			continue
		}
		w.tally.flushes++
		w.logf("flushed up to %v", o.v)
		o.ended = w.order
		c.flush = append(c.flush, o.v)
		for k := range c.ops {
			x := &c.ops[k]
			if at, ok := h.at(x.v.Index); x.kind == opWrite && ok && x.v.Index > h.tail.Index && at == x.v && x.v.Index <= o.v.Index {
				c.floor[x.block] = k
			}
		}
		c.durable(w, o.v)
	}
}

// durable checks that what was flushed is on the disks of all of the acting set, alive or not.
func (c *client) durable(w *world, v Version) {
	for _, m := range w.osdmap.Acting {
		d := &w.hosts[m.ID].disk
		if !slices.Contains(w.lost, m.ID) && d.head().Index < v.Index {
			w.fail("%v is flushed, and the disk of %v, which is in the acting set, ends with %v", v, m, d.head())
		}
	}
}

// holds checks that what was acknowledged is with all acting members that live, and what was flushed
// on all of their disks.
func (c *client) holds(w *world) {
	for _, v := range c.acks[max(0, len(c.acks)-3):] {
		w.committed(v, "acknowledged before")
	}
	if len(c.flush) > 0 {
		c.durable(w, c.flush[len(c.flush)-1])
	}
}

// gone: calls at a node get no answer any more.
func (c *client) gone(_ *world, m Member) {
	for i := range c.ops {
		if o := &c.ops[i]; o.at == m && o.ended == never {
			o.over = true
		}
	}
}

// era: all acting members have restarted. Only what was flushed had to survive.
func (c *client) era(w *world) {
	c.judge(w)
	w.order++
	c.epoch++
	c.acks, c.base = nil, c.floor
	for i := range c.ops {
		if o := &c.ops[i]; o.kind == opWrite && o.ended == never {
			o.ended = w.order
		}
	}
}

// judge judges the history.
func (c *client) judge(w *world) {
	for b := range blocks {
		c.register(w, b)
	}
}

// A zone is when a block had a value, by what is known: from before first to after last.
type zone struct {
	value       int
	first, last uint64 // the earliest end and the latest beginning of the calls with this value
}

// register checks that a block was linearizable: P. Gibbons, E. Korach, Testing Shared Memories, SIAM
// J. Comput. 26(4), 1997. Each value was written once, so a value's calls make up a zone; zones
// in which it must have been there all the time do not overlap, nor contain another one.
func (c *client) register(w *world, block int) {
	zones := map[int]*zone{}
	old, from := 0, uint64(0) // what the history began with
	for i := range c.ops {
		if o := &c.ops[i]; o.kind == opWrite && o.block == block && o.epoch == c.epoch {
			zones[o.value] = &zone{o.value, o.ended, o.begun}
		} else if o.epoch == c.epoch && from == 0 {
			from = o.begun
		}
	}
	read := map[int]bool{}
	for i := range c.ops {
		o := &c.ops[i]
		if o.kind != opRead || o.block != block || o.epoch != c.epoch || o.ended == never {
			continue
		}
		read[o.value] = true
		z := zones[o.value]
		if z == nil {
			if old != 0 && old != o.value {
				w.fail("block %d was %d, and then %d, and neither was written since all restarted", block, old, o.value)
			}
			if old = o.value; !c.candidate(old, block) {
				w.fail("block %d is %d after all have restarted, and that was overwritten by %d, which was flushed", block, old, c.ops[c.base[block]].value)
			}
			z = &zone{old, 0, 0}
			zones[old] = z
		}
		z.first, z.last = min(z.first, o.ended), max(z.last, o.begun)
	}
	for i := range c.ops {
		o := &c.ops[i]
		if z := zones[o.value]; o.kind == opWrite && o.block == block && o.epoch == c.epoch && read[o.value] && z.first < o.begun {
			w.fail("block %d was read as %d before that was written", block, o.value)
		}
	}
	for _, a := range zones {
		if a.first >= a.last {
			continue
		}
		for _, b := range zones {
			switch {
			case a == b || b.first == never && !read[b.value]:
			case a.first < b.last && b.first < a.last:
				w.fail("block %d is not linearizable: it was %d from %d to %d, and %d from %d to %d", block, a.value, a.first, a.last, b.value, b.first, b.last)
				return
			}
		}
	}
}

// candidate says whether a block may have a value after all have restarted: the last flushed one, or one
// that was not over before that was begun.
func (c *client) candidate(value, block int) bool {
	floor := &c.ops[c.base[block]]
	for i := range c.ops {
		if o := &c.ops[i]; o.kind == opWrite && o.block == block && o.value == value {
			return i == c.base[block] || o.ended >= floor.begun
		}
	}
	return false
}
