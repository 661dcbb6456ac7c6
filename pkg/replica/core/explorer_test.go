package core

import (
	"flag"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

// A budget is what may yet happen on a path, beside what follows from that: the oldest event comes next,
// unless it is one of so many delays (M. Emmi, S. Qadeer, Z. Rakamarić: Delay-bounded Scheduling, POPL 2011).
type budget struct{ writes, flushes, crashes, jumps, losses, delays int }

// jump is how long time passes at once: all leases and graces have ended then, and what has not arrived is sent again.
const jump = 2 * time.Second

const hosts = 1<<manager - 1 // of resources

// TestExplorer goes through all that can happen to a volume on three hosts within a bound: clients write at any
// time, messages and answers come in another order or not at all, entries become durable at another time,
// hosts crash at any time with and without what they had not synced, and time passes, so that others
// take over and the acting set changes. In each state the invariants of the adversary hold; from many,
// the volume comes to rest and goes on.
//
// The long mode's first bound has it all at once: three entries, two crashes, a change of the acting set, a message that is lost, and
// one that another overtakes. These are 1,643,638 states by 4,784,830 steps, in 70 s of one processor. The normal test has one
// crash less there: 81,627 states by 163,483 steps, 4 s; with its other bounds 15 s.
func TestExplorer(t *testing.T) {
	for _, r := range []struct {
		name        string
		bound, long budget // of the normal test, and of the long one
		begin       func(w *world)
	}{
		{"all at once", budget{crashes: 1, jumps: 1, losses: 1, delays: 1}, budget{crashes: 2, jumps: 1, losses: 1, delays: 1}, func(w *world) {
			w.someone(Active, func(h *host) {
				for range 3 {
					w.client.write(w, h, 0)
				}
			})
		}},
		{"writes, and crashes", budget{writes: 2, crashes: 1, jumps: 1}, budget{writes: 3, crashes: 2, jumps: 1}, func(*world) {}},
		{"other orders", budget{writes: 1, crashes: 1, jumps: 1, delays: 1}, budget{writes: 2, crashes: 1, jumps: 1, delays: 2}, func(*world) {}},
		{"a flush, and a loss", budget{crashes: 1, jumps: 1, losses: 1}, budget{writes: 1, crashes: 2, jumps: 1, losses: 1}, func(w *world) {
			w.someone(Active, func(h *host) {
				w.client.write(w, h, 0)
				w.client.flushAll(w, h)
			})
		}},
		{"a takeover", budget{writes: 1, crashes: 1, delays: 1}, budget{writes: 1, crashes: 2, jumps: 1, delays: 1}, func(w *world) {
			w.someone(Active, func(h *host) { w.client.write(w, h, 0) })
			w.now += jump
			w.someone(Replica, func(h *host) { h.n.Tick(h.clock(w.now)); w.settle(h) })
		}},
		{"all restart", budget{writes: 1, crashes: 2, delays: 1}, budget{writes: 1, crashes: 2, jumps: 1, delays: 1}, func(w *world) {
			w.someone(Active, func(h *host) { w.client.write(w, h, 0) })
			w.flush(2)
			for _, h := range w.hosts {
				w.crash(h, int(h.id))
			}
			for _, h := range w.hosts {
				w.start(h)
			}
			w.now += jump
		}},
	} {
		t.Run(r.name, func(t *testing.T) { explore(t, r.bound, r.long, r.begin) })
	}
}

// coreBound replaces the bounds.
var coreBound = flag.String("core.bound", "", "what the explorer may do: writes,flushes,crashes,jumps,losses,delays")

func explore(t *testing.T, bound, long budget, begin func(w *world)) {
	x := explorer{seen: map[uint64]visit{}, more: map[uint64][]visit{}, seed: maphash.MakeSeed(), every: 2000}
	if os.Getenv("MCRDMA_LONG") != "" {
		bound, x.every = long, 20_000
	}
	if *coreBound != "" {
		if _, err := fmt.Sscanf(*coreBound, "%d,%d,%d,%d,%d,%d", &bound.writes, &bound.flushes, &bound.crashes, &bound.jumps, &bound.losses, &bound.delays); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(3, 3, 2)
	w.rnd, w.calm = rand.New(rand.NewPCG(1, 1)), true
	for _, h := range w.hosts {
		w.start(h)
	}
	w.pass(3 * time.Second)
	w.pass(0)
	w.queue = slices.DeleteFunc(w.queue, func(e *event) bool { return e.kind == evTick })
	w.pass(time.Second) // nothing is under way
	w.now, w.steps, w.calm = w.now.Truncate(jump)+jump, true, false
	for _, h := range w.hosts { // all leases are fresh
		h.n.beat = 0
	}
	for _, h := range w.hosts {
		h.n.Tick(h.clock(w.now))
		w.settle(h)
	}
	w.flush(1000)
	begin(w)
	start := time.Now()
	x.explore(&node{w, bound, hosts | writable, nil})
	if x.err != nil {
		t.Fatalf("%q: %v", x.names, x.err)
	}
	t.Logf("%+v: %d states by %d steps, %d of them come to rest, %v", bound, len(x.seen), x.steps, x.rested, time.Since(start).Round(time.Millisecond))
	if len(x.seen) < 1000 || x.rested == 0 {
		t.Errorf("%d states only, %d of them come to rest", len(x.seen), x.rested)
	}
}

// someone does something at the first host in a state.
func (w *world) someone(s State, f func(*host)) {
	for _, h := range w.hosts {
		if h.n != nil && h.n.State() == s {
			f(h)
			return
		}
	}
	w.fail("no host is %v", s)
}

// flush has so many events happen, in order, and all be durable.
func (w *world) flush(n int) {
	for ; n > 0; n-- {
		for _, h := range w.hosts {
			w.sync(h)
		}
		if !w.next(w.now) {
			return
		}
	}
}

func (w *world) sync(h *host) {
	if h.n == nil || len(h.ops) == 0 {
		return
	}
	w.happens(event{kind: evSync, host: h.n.self, seq: h.ops[len(h.ops)-1].Seq})
}

type explorer struct {
	seen   map[uint64]visit   // the first of each state
	more   map[uint64][]visit // the others
	seed   maphash.Seed
	enc    encoder
	steps  int
	rested int
	every  int // of so many states one comes to rest
	err    error
	names  []string // the way to the state that must not be
}

// A visit is what may yet happen in a state, four bits for each, and after which hosts' steps it was come to.
type visit uint32

func (b *budget) visit(touched uint8) (v visit) {
	for _, n := range []int{b.writes, b.flushes, b.crashes, b.jumps, b.losses, b.delays} {
		v = v<<4 | visit(n) //nolint:gosec // small
	}
	return v<<4 | visit(touched)
}

// covers says whether all that may follow v may follow another one.
func (v visit) covers(o visit) bool {
	if o&15&^v != 0 {
		return false
	}
	for v, o = v>>4, o>>4; o > 0; v, o = v>>4, o>>4 {
		if v&15 < o&15 {
			return false
		}
	}
	return true
}

// fresh says whether something may follow that was not gone through yet.
func (x *explorer) fresh(k uint64, v visit) bool {
	first, ok := x.seen[k]
	switch {
	case !ok || v.covers(first):
		x.seen[k] = v
	case first.covers(v) || slices.ContainsFunc(x.more[k], func(o visit) bool { return o.covers(v) }):
		return false
	default:
		x.more[k] = append(x.more[k], v)
	}
	return true
}

type node struct {
	w       *world
	b       budget
	touched uint8 // the hosts that may crash next; and writable
	path    *step
}

type step struct {
	name string
	up   *step
}

// Beside hosts: the host that is active may be written to next; and the hosts have made a step.
const (
	writable = 1 << manager
	stepped  = 1 << (manager + 1)
)

// silent are the hosts that have neither sent, nor stored, nor acknowledged anything in a step: for the others they might as
// well have crashed before.
func (w *world) silent(after *world) (set uint8) {
	for i, h := range w.hosts {
		if x := after.hosts[i]; after.order == w.order && len(x.ops) == len(h.ops) && x.disk.hard == h.disk.hard && x.disk.tail == h.disk.tail &&
			slices.Equal(x.disk.log, h.disk.log) {
			set |= 1 << i
		}
	}
	return set
}

// explore goes through the states, depth first.
func (x *explorer) explore(n *node) {
	n.steps(func(name string, b budget, touched uint8, f func(w *world)) {
		if x.err != nil {
			return
		}
		c := n.w.clone()
		f(c)
		if touched&stepped != 0 {
			touched &^= stepped | n.w.silent(c)
		}
		c.check()
		c.client.holds(c)
		x.steps++
		path := &step{name, n.path}
		states := len(x.seen)
		if c.err == nil && !x.fresh(c.key(x.seed, &x.enc), b.visit(touched)) {
			return
		}
		if len(x.seen) > states && len(x.seen)%x.every == 0 && c.err == nil {
			x.rested++
			r := c.clone()
			r.comesToRest()
			c.err = r.err
		}
		if c.err == nil {
			x.explore(&node{c, b, touched, path})
			return
		}
		x.err = c.err
		for p := path; p != nil; p = p.up {
			x.names = append(x.names, p.name)
		}
		slices.Reverse(x.names)
	})
}

// comesToRest has the world go on by itself, without faults.
func (w *world) comesToRest() {
	w.steps, w.rnd = false, rand.New(rand.NewPCG(1, 1))
	for _, h := range w.hosts {
		if h.n == nil {
			w.start(h)
		} else {
			w.tick(h)
			w.resync(h)
		}
	}
	for i, g := range w.groups {
		if g.asked != nil && !g.ended {
			w.later(0, event{kind: evViewLate, g: i, seq: uint64(g.number)})
		}
	}
	w.rest()
	w.client.judge(w)
}

// resync has what is not durable become so.
func (w *world) resync(h *host) {
	for _, p := range h.ops {
		w.later(w.soon(), event{kind: evSync, host: h.n.self, seq: p.Seq})
	}
}

// inOrder are the events to come, the oldest first.
func (w *world) inOrder() (list []int) {
	for i := range w.queue {
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b int) int { return int(w.queue[a].order) - int(w.queue[b].order) })
	return list
}

// steps are what may happen next. Of steps that commute one order suffices: a host crashes, or is written to, after a
// step of its own, and what is lost is lost when it is due.
func (n *node) steps(do func(name string, b budget, touched uint8, f func(*world))) {
	w, delayed := n.w, n.b
	delayed.delays--
	before, first := uint8(0), true // what comes before a step without a delay
	follows := func(name string, touched uint8, f func(*world)) {
		switch {
		case first:
			do(name, n.b, touched&hosts|writable|stepped, f)
		case delayed.delays >= 0 && before&touched != 0:
			do(name, delayed, touched&hosts|writable|stepped, f)
		}
		before, first = before|touched, false
	}
	seen := map[string]bool{}
	for _, i := range w.inOrder() {
		e := w.queue[i]
		name := e.name()
		if seen[name] {
			continue
		}
		seen[name] = true
		if k := e.kind; first && n.b.losses > 0 && (k == evMessage || k == evMap || k == evPropose) {
			b := n.b
			b.losses--
			defer do("loss of "+name, b, 0, func(w *world) { w.queue = slices.Delete(w.queue, i, i+1) })
		}
		follows(name, w.touches(e), func(w *world) { w.take(i) })
	}
	of := func(h *host, f func(w *world, h *host)) func(w *world) {
		return func(w *world) { f(w, w.hosts[h.id]) }
	}
	for _, h := range w.hosts {
		if h.n != nil && len(h.ops) > 0 {
			follows(fmt.Sprint("sync ", h.id), 1<<h.id, of(h, func(w *world, h *host) { w.sync(h) }))
		}
	}
	for _, h := range w.hosts {
		if h.n != nil && h.clock(w.now) >= h.n.Deadline() {
			follows(fmt.Sprint("tick ", h.id), 1<<h.id, of(h, func(w *world, h *host) { w.happens(event{kind: evTick, host: h.n.self}) }))
		}
	}
	for _, h := range w.hosts {
		if h.n == nil {
			follows(fmt.Sprint("start ", h.id), 1<<h.id, of(h, func(w *world, h *host) { w.start(h) }))
		}
	}
	for _, h := range w.hosts {
		if h.n == nil {
			continue
		}
		spend := func(get func(*budget) *int, name string, touched uint8, f func(w *world, h *host)) {
			b := n.b
			if left := get(&b); *left > 0 {
				*left--
				do(fmt.Sprint(name, " ", h.id), b, touched, of(h, f))
			}
		}
		if n.touched&(1<<h.id) != 0 {
			later := n.touched & hosts &^ (2<<h.id - 1) // of two that crash, the order does not matter
			spend(func(b *budget) *int { return &b.crashes }, "crash", later, func(w *world, h *host) { w.crash(h, 0) })
			if len(h.ops) > 0 {
				spend(func(b *budget) *int { return &b.crashes }, "crash, synced", later, func(w *world, h *host) { w.crash(h, len(h.ops)) })
			}
		}
		if n.touched&writable != 0 && h.n.State() == Active {
			spend(func(b *budget) *int { return &b.writes }, "write", n.touched, func(w *world, h *host) { w.client.write(w, h, 0) })
			spend(func(b *budget) *int { return &b.flushes }, "flush", n.touched, func(w *world, h *host) { w.client.flushAll(w, h) })
		}
	}
	if b := n.b; b.jumps > 0 { // while something else is to come it is late
		if b.jumps--; len(w.queue) > 0 || slices.ContainsFunc(w.hosts, func(h *host) bool { return h.n != nil && len(h.ops) > 0 }) {
			b.delays--
		}
		if b.delays < 0 {
			return
		}
		do("time passes", b, hosts|writable, func(w *world) { w.now += jump })
	}
}
