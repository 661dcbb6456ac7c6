package core

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// up says whether a host may have a copy.
func (w *world) up(id ID) bool { return slices.Contains(w.osdmap.Up, id) }

// operate changes the map as the operator wants.
func (w *world) operate(m Map, err error) {
	if err != nil {
		return
	}
	w.tally.orders++
	w.logf("the operator: map %+v", m)
	w.osdmap = m
	w.watched()
	w.client.holds(w)
}

// watched: hosts watch the configuration manager.
func (w *world) watched() {
	for _, h := range w.hosts {
		if h.n != nil && !w.away && !w.chance(20) {
			w.later(w.soon(), event{kind: evMap, host: h.n.self, m: w.osdmap})
		}
	}
}

// survives says whether an acting member other than a host has not restarted.
func (w *world) survives(without ID) bool {
	return slices.ContainsFunc(w.osdmap.Acting, func(m Member) bool { return m.ID != without && w.host(m) != nil })
}

// orders are what an operator does to a volume that has its data.
func (w *world) orders() {
	id := w.osdmap.Up[w.rnd.IntN(len(w.osdmap.Up))]
	m := w.osdmap
	switch w.rnd.IntN(4) {
	case 0, 1:
		w.operate(m.Promoted(id))
	case 2:
		w.operate(m.Needs(1 + w.rnd.IntN(len(m.Acting))))
	case 3:
		if w.rnd.IntN(2) == 0 {
			w.down(w.hosts[id], time.Duration(w.rnd.IntN(3000))*time.Millisecond)
		}
		w.replace(id)
	}
}

// replace gives a host's place to one that has none, or takes it out of the acting set.
func (w *world) replace(id ID) {
	m := w.osdmap
	if m.Holds(id) && !w.survives(id) {
		return
	}
	i := slices.IndexFunc(w.hosts, func(h *host) bool { return !w.up(h.id) && h.n == nil })
	if i < 0 {
		w.operate(m.Without(id))
		return
	}
	w.tally.replaced++
	w.later(w.soon(), event{kind: evStart, host: Member{ID: ID(i)}})
	w.operate(m.Replaced(id, ID(i), Member{}))
}

// drop: a host learns that its place was given to another. It ends its copy.
func (w *world) drop(h *host) {
	w.crash(h, 0)
	w.wipe(h)
	if w.up(h.id) { // it was given a place again
		w.later(w.soon(), event{kind: evStart, host: Member{ID: h.id}})
	}
}

// wipe replaces a host's disk. Its clock goes on.
func (w *world) wipe(h *host) {
	h.disk, h.store, h.safe = disklog{hard: HardState{Incarnation: h.disk.hard.Incarnation + 1}}, store{}, store{}
	if h.n != nil {
		w.fail("the disk of %d is replaced while it runs", h.id)
	}
}

// lossOrders are what an operator does when all hosts have lost power, and some will not come back with what they had.
func (w *world) lossOrders() {
	m := w.osdmap
	intact := func(x Member) bool {
		d := &w.hosts[x.ID].disk
		return d.hard.LastEpochStarted > 0 && !d.hard.Backfilling && d.hard.Born <= x.Incarnation
	}
	if w.rnd.IntN(4) == 0 { // all of the acting set are lost, but another host has some of it
		id := m.Up[w.rnd.IntN(len(m.Up))]
		if x := (Member{id, w.hosts[id].disk.hard.Incarnation}); intact(x) {
			w.goOn(x)
		}
		return
	}
	i := w.rnd.IntN(len(m.Acting))
	gone, lost := m.Acting[i], m.Acting[i].ID
	k := slices.IndexFunc(m.Acting, func(x Member) bool { return x.ID != lost && intact(x) })
	if k < 0 {
		return
	}
	other, born := m.Acting[k].ID, gone.Incarnation
	if w.rnd.IntN(2) == 0 { // it comes back with another disk before the operator knows
		w.tally.wiped++
		w.wipe(w.hosts[lost])
		w.lost, born = []ID{lost}, w.hosts[lost].disk.hard.Incarnation
		w.pass(time.Duration(w.rnd.IntN(4000)) * time.Millisecond)
	}
	if m = w.osdmap; m.Acts(gone) || slices.ContainsFunc(m.Acting, func(x Member) bool { return x.ID == lost && x.Incarnation < born }) {
		next, err := m.Without(lost)
		if w.operate(next, err); err != nil {
			w.goOn(Member{other, w.hosts[other].disk.hard.Incarnation})
		}
	}
	w.lost = nil
}

// goOn gives up all but what one has.
func (w *world) goOn(x Member) {
	w.tally.only++
	w.client.lose(w)
	w.only = w.osdmap.Epoch + 1
	w.operate(w.osdmap.Only(x), nil)
}

// lose: the volume goes on with any of what was written.
func (c *client) lose(w *world) {
	c.era(w)
	c.flush = nil
	for b := range blocks {
		c.floor[b], c.base[b] = b, b
	}
}

// TestReplace: a dead host's place is given to another one, which gets a copy; the dead one, back, has no part in it. The
// primary goes on, unless it was the one that is replaced.
func TestReplace(t *testing.T) {
	for _, minSize := range []int{1, 2, 3} {
		for _, primary := range []bool{false, true} {
			for _, alive := range []bool{false, true} {
				w := newWorld(4, 3, minSize)
				w.rnd, w.calm, w.trace = rand.New(rand.NewPCG(1, 1)), true, *coreTrace
				w.osdmap.Up = w.osdmap.Up[:3]
				for _, h := range w.hosts[:3] {
					w.start(h)
				}
				w.pass(2 * time.Second)
				w.write(t, 0)
				p := w.primary(t)
				lost := w.hosts[(p.id+1)%3]
				if primary {
					lost = p
				}
				if !alive {
					w.crash(lost, len(lost.ops))
				}
				w.replace(lost.id)
				w.pass(5 * time.Second)
				w.write(t, 1)
				if got := w.primary(t); (got == p) == primary {
					t.Errorf("min_size %d, primary %v: %d is the primary, and was %d", minSize, primary, got.id, p.id)
				}
				if lost.n == nil && !alive { // it does not know yet
					w.start(lost)
				}
				if w.ends(t); !w.osdmap.Holds(3) || w.osdmap.Holds(lost.id) || lost.n != nil || len(lost.disk.log) > 0 {
					t.Errorf("%+v, and the lost host has %+v", w.osdmap, lost.disk)
				}
			}
		}
	}
}

// TestReplacedAndBack: a host gets its place back that it had lost, with its copy, before the primary knows either.
func TestReplacedAndBack(t *testing.T) {
	w := begun(t, 4, 2)
	w.write(t, 0)
	w.client.flushAll(w, w.primary(t))
	w.pass(time.Second)
	p := w.primary(t)
	x := w.hosts[(p.id+1)%4]
	m, err := w.osdmap.Replaced(x.id, 9, Member{})
	if err != nil {
		t.Fatal(err)
	}
	w.osdmap = m
	w.drop(x)
	if m, err = m.Replaced(9, x.id, Member{}); err != nil {
		t.Fatal(err)
	}
	w.operate(m, nil)
	p.n.MapIs(m, p.clock(w.now))
	w.settle(p)
	w.later(time.Second, event{kind: evStart, host: Member{ID: x.id}})
	w.ends(t)
}

// TestPromoted: another acting member becomes the primary, at once, and clients go on.
func TestPromoted(t *testing.T) {
	w := begun(t, 3, 2)
	for range 6 {
		w.write(t, 0)
		p := w.primary(t)
		w.client.write(w, p, 1)
		next := w.hosts[(p.id+1)%3]
		w.operate(w.osdmap.Promoted(next.id))
		w.pass(w.config(0).Grace / 2)
		if len(w.osdmap.Acting) != 3 || w.primary(t) != next {
			t.Fatalf("%+v\n%s", w.osdmap, w.status())
		}
	}
	w.ends(t)
}

// TestPromotedBusy: a primary that does not know that another one was promoted still serves, until that one does; also if it
// is taken out of the acting set before it knows.
func TestPromotedBusy(t *testing.T) {
	for _, takenOut := range []bool{false, true} {
		w := begun(t, 3, 2)
		p := w.primary(t)
		next := w.hosts[(p.id+1)%3]
		p.frozen = true
		w.operate(w.osdmap.Promoted(next.id))
		if takenOut {
			w.operate(w.osdmap.Without(p.id))
		}
		for range 30 {
			w.later(0, event{kind: evMap, host: next.n.self, m: w.osdmap})
			w.pass(10 * time.Millisecond)
			if p.n.leased(p.clock(w.now)) && next.n.leased(next.clock(w.now)) {
				t.Fatal("both serve")
			}
		}
		w.pass(3 * time.Second)
		if w.primary(t) != next {
			t.Error(w.status())
		}
		p.frozen = false
		w.ends(t)
	}
}
