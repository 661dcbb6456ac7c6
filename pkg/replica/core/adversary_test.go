package core

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

var (
	coreSeed  = flag.Uint64("core.seed", 0, "run the adversary with this seed only")
	coreSeeds = flag.Uint64("core.seeds", 2000, "run the adversary with so many seeds; a hundred thousand with MCRDMA_LONG")
	coreTrace = flag.Bool("core.trace", false, "print all that happens")
)

// TestAdversary has clients write, flush and read while all goes wrong that can: messages are lost, doubled
// and overtake each other, hosts crash and lose what they had not synced, freeze, have clocks that differ,
// are cut off; the configuration manager is away, its answers are lost; all hosts lose power; and the
// operator replaces hosts, promotes others, changes min_size, and takes out what is lost. Every seed is another scenario.
func TestAdversary(t *testing.T) {
	if *coreSeed != 0 {
		if err := runAdversary(*coreSeed, *coreTrace, new(tally)); err != nil {
			t.Fatal(err)
		}
		return
	}
	seeds := *coreSeeds
	if os.Getenv("MCRDMA_LONG") != "" {
		seeds = 100_000
	}
	var total tally
	for s := uint64(1); s <= seeds; s++ {
		if err := runAdversary(s, false, &total); err != nil {
			t.Fatalf("%v\nreplay: go test ./pkg/replica/core -run 'TestAdversary$' -core.seed=%d -core.trace", err, s)
		}
	}
	t.Logf("%d seeds: %+v", seeds, total)
	for _, n := range []int{total.acked / 10, total.reads / 10, total.flushes, total.crashes, total.power * 5, total.revived * 5,
		total.takeovers, total.removals, total.promotions, total.backfills, total.truncated * 2, total.forms, total.waits * 3, total.refused,
		total.orders, total.replaced * 10, total.only * 30, total.wiped * 30} {
		if n < int(seeds) {
			t.Fatalf("the adversary does not exercise what it should: %+v", total)
		}
	}
}

// tally counts what has happened, so that a run that tests nothing is noticed.
type tally struct {
	acked, reads, flushes, crashes, power, revived, takeovers, removals, promotions, backfills, truncated, forms, waits, refused int
	orders, replaced, only, wiped                                                                                                int // the operator's
}

func (t *tally) add(o tally) {
	t.acked += o.acked
	t.reads += o.reads
	t.flushes += o.flushes
	t.crashes += o.crashes
	t.power += o.power
	t.revived += o.revived
	t.takeovers += o.takeovers
	t.removals += o.removals
	t.promotions += o.promotions
	t.backfills += o.backfills
	t.truncated += o.truncated
	t.forms += o.forms
	t.waits += o.waits
	t.refused += o.refused
	t.orders += o.orders
	t.replaced += o.replaced
	t.only += o.only
	t.wiped += o.wiped
}

func runAdversary(seed uint64, trace bool, total *tally) (err error) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	hosts := 3 + rnd.IntN(2)
	w := newWorld(hosts, min(hosts, 2+rnd.IntN(2)), 1+rnd.IntN(2))
	w.rnd, w.trace = rnd, trace
	spare := btoi(hosts == 4 && rnd.IntN(3) > 0)
	w.osdmap.Up = w.osdmap.Up[:hosts-spare]
	defer func() {
		if p := recover(); p != nil {
			if trace {
				panic(p)
			}
			err = fmt.Errorf("panic: %v", p)
		}
		total.add(w.tally)
	}()
	for _, h := range w.hosts {
		h.rate = int64(920 + rnd.IntN(160))
		h.offset = time.Duration(rnd.IntN(1000)) * time.Second
		h.boasts = seed%5 == 0 && h.id == 1
		if w.up(h.id) {
			w.start(h)
		}
	}
	w.calm = true
	w.pass(time.Duration(rnd.IntN(3000)) * time.Millisecond)
	w.calm = false
	for range 100 + rnd.IntN(150) {
		if rnd.IntN(100) < 60 {
			w.pass(time.Duration(rnd.IntN(40)) * time.Millisecond)
		} else if rnd.IntN(100) < 30 {
			w.pass(time.Duration(rnd.IntN(1000)) * time.Millisecond)
		}
		w.something()
		w.client.holds(w)
		if w.err != nil {
			return w.err
		}
	}
	w.rest()
	w.client.judge(w)
	return w.err
}

func (w *world) pass(d time.Duration) {
	for end, n := w.now+d, 0; w.err == nil && w.next(end); n++ {
		if n > 20_000 {
			w.fail("it does not come to rest\n%s", w.status())
		}
	}
}

// something is what clients, chance and the operator do.
func (w *world) something() {
	h := w.hosts[w.rnd.IntN(len(w.hosts))]
	switch n := w.rnd.IntN(100); {
	case n < 30:
		for range 1 + w.rnd.IntN(4) {
			w.clientOf(func(h *host) bool { return w.client.write(w, h, w.rnd.IntN(blocks)) })
		}
	case n < 55:
		w.clientOf(func(h *host) bool { return w.client.read(w, h, w.rnd.IntN(blocks)) })
	case n < 65:
		w.clientOf(func(h *host) bool { return w.client.flushAll(w, h) })
	case n < 73:
		w.down(h, time.Duration(w.rnd.IntN(2500))*time.Millisecond)
	case n < 80:
		w.freeze(h, 1200*time.Millisecond)
	case n < 85:
		w.cut = [2]int{int(h.id), w.rnd.IntN(len(w.hosts)+1) - 1}
		if w.cut[1] < 0 {
			w.cut[1] = -2 // it reaches no other host
		}
	case n < 90:
		w.cut = [2]int{-1, -1}
	case n < 93:
		w.away = !w.away
	case n < 94:
		w.trouble()
	case n < 95: // writes all the time
		for range 40 {
			w.clientOf(func(h *host) bool { return w.client.write(w, h, w.rnd.IntN(blocks)) })
			w.pass(time.Duration(w.rnd.IntN(3000)) * time.Microsecond)
		}
	case n < 96:
		w.tally.power++
		for _, h := range w.hosts {
			w.down(h, time.Duration(w.rnd.IntN(3000))*time.Millisecond)
		}
		if w.rnd.IntN(2) == 0 {
			w.lossOrders()
		}
	default:
		w.orders()
	}
}

// trouble comes to the primary, or to another member, while writes are on their way.
func (w *world) trouble() {
	for range 1 + w.rnd.IntN(4) {
		w.clientOf(func(h *host) bool { return w.client.write(w, h, w.rnd.IntN(blocks)) })
	}
	w.clientOf(func(h *host) bool { return w.client.read(w, h, w.rnd.IntN(blocks)) })
	w.clientOf(func(h *host) bool { return w.client.flushAll(w, h) })
	w.pass(time.Duration(w.rnd.IntN(6000)) * time.Microsecond)
	h := w.hosts[w.osdmap.Primary.ID]
	if w.rnd.IntN(3) == 0 {
		h = w.hosts[w.rnd.IntN(len(w.hosts))]
	}
	switch w.rnd.IntN(4) {
	case 0:
		w.freeze(h, 1500*time.Millisecond)
	case 1:
		w.cut = [2]int{int(h.id), -2}
	default:
		w.down(h, time.Duration(w.rnd.IntN(1500))*time.Millisecond)
	}
	w.pass(time.Duration(w.rnd.IntN(1500)) * time.Millisecond)
}

func (w *world) freeze(h *host, most time.Duration) {
	if h.n != nil && !h.frozen {
		w.logf("%d freezes", h.id)
		h.frozen = true
		w.later(time.Duration(w.rnd.Int64N(int64(most))), event{kind: evThaw, host: Member{ID: h.id}})
	}
}

func (w *world) clientOf(f func(*host) bool) {
	for _, h := range w.hosts {
		if h.n != nil && !h.frozen && f(h) {
			return
		}
	}
}

func (w *world) down(h *host, d time.Duration) {
	if h.n != nil {
		w.crash(h, w.rnd.IntN(len(h.ops)+1)*w.rnd.IntN(2))
		w.later(d, event{kind: evStart, host: Member{ID: h.id}})
	}
}

// rest: faults stop, and the volume must go on, with all hosts.
func (w *world) rest() {
	w.calm, w.away, w.cut = true, false, [2]int{-1, -1}
	for _, h := range w.hosts {
		h.boasts = false
	}
	w.watched()
	well := 0 // in a row: leases may just have been those from before
	for i := 0; i < 40 && well < 2 && w.err == nil; i++ {
		w.pass(500 * time.Millisecond)
		if well++; len(w.osdmap.Acting) != len(w.osdmap.Up) || !slices.ContainsFunc(w.hosts, func(h *host) bool { return h.n != nil && h.n.leased(h.clock(w.now)) }) {
			well = 0
		}
	}
	if w.err != nil {
		return
	}
	c := &w.client
	done := len(c.ops)
	for b := range blocks {
		w.clientOf(func(h *host) bool { return c.read(w, h, b) })
		w.clientOf(func(h *host) bool { return c.write(w, h, b) })
	}
	w.pass(2 * time.Second) // what was on its way before may be late
	w.clientOf(func(h *host) bool { return c.flushAll(w, h) })
	w.pass(2 * time.Second)
	for b := range blocks {
		w.clientOf(func(h *host) bool { return c.read(w, h, b) })
	}
	w.pass(time.Second)
	if w.err != nil {
		return
	}
	if len(c.ops)-done != 3*blocks+1 || slices.ContainsFunc(c.ops[done:], func(o op) bool { return o.ended == never }) {
		w.fail("long after the last fault %d calls are taken, of them %+v\n%s", len(c.ops)-done, c.ops[done:], w.status())
	}
	if len(w.osdmap.Acting) != len(w.osdmap.Up) {
		w.fail("long after the last fault the acting set is %v\n%s", w.osdmap.Acting, w.status())
	}
	for _, h := range w.hosts {
		if n := len(h.log); n > 20 && w.up(h.id) {
			w.fail("the log of %d has %d entries", h.id, n)
		}
	}
}

func (w *world) status() (s string) {
	for _, h := range w.hosts {
		if h.n != nil {
			s += fmt.Sprintf("%d: %+v\n", h.id, h.n.Status(h.clock(w.now)))
			if h.n.lead != nil {
				s += fmt.Sprintf("   %+v\n", h.n.lead)
			}
		}
	}
	return s
}
