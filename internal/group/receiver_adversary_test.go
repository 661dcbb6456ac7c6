package group

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

var receiverSeed = flag.Uint64("receiver.seed", 0, "run the receiver's adversary with this seed only, and print its events")

// TestReceiverAdversary has a sender's daemon, applications, a store and restarts do what they
// like in any order. Every seed is another run; see hostWorld for what must hold.
func TestReceiverAdversary(t *testing.T) {
	if *receiverSeed != 0 {
		if err := receiverRun(*receiverSeed, tally{}, true); err != nil {
			t.Fatal(err)
		}
		return
	}
	seeds := uint64(2000)
	if os.Getenv("MCRDMA_LONG") != "" {
		seeds = 100_000
	}
	all := tally{}
	for s := uint64(1); s <= seeds; s++ {
		if err := receiverRun(s, all, false); err != nil {
			t.Fatalf("seed %d: %v\nreplay: go test ./internal/group -run 'TestReceiverAdversary$' -receiver.seed=%d", s, err, s)
		}
	}
	t.Logf("%d seeds: %v", seeds, all)
	for _, what := range []string{"asked", "formed", "Prepare", "Commit", "RecordView", "Prepare refused", "Commit refused", "RecordView refused",
		"REASON_UNSPECIFIED", "REASON_CLOSED", "REASON_REMOVED", "REASON_SENDER_LOST", "REASON_REFORMED", "REASON_ABORTED",
		"restarts", "loaded", "resumed", "failed writes", "writes cut off", "written after their end"} {
		if all[what] < int(seeds)/20 {
			t.Errorf("it is too rare to test anything: %s, %d times", what, all[what])
		}
	}
}

// pick returns one of a list; false: it is empty.
func pick[T any](rng *rand.Rand, list []T) (x T, ok bool) {
	if len(list) == 0 {
		return x, false
	}
	return list[rng.IntN(len(list))], true
}

func receiverRun(seed uint64, all tally, trace bool) error {
	rng := rand.New(rand.NewPCG(seed, 18))
	w := newHostWorld()
	w.told = all
	present := uint32(1) // the sender's formation, more or less
	view := uint32(rng.IntN(2))
	near := func() uint32 { return max(1, present+uint32(rng.IntN(3))) - min(present, uint32(rng.IntN(2))) }
	attaches := func() []uint64 { return slices.Sorted(maps.Keys(w.apps)) }
	coin := func() bool { return rng.IntN(2) == 0 }
	events := []struct {
		weight int
		name   string
		do     func()
	}{
		{6, "prepare", func() { w.prepare(present+uint32(rng.IntN(2)), "a", present == 1, "app") }},
		{2, "prepare other", func() {
			w.prepare(near(), []string{"a", "b"}[rng.IntN(2)], rng.IntN(4) == 0, []string{"app", "app2", ""}[rng.IntN(3)])
		}},
		{8, "answer", func() {
			if a, ok := pick(rng, attaches()); ok {
				w.answer(a, rng.IntN(8) == 0)
			}
		}},
		{6, "answer last", func() {
			if a := attaches(); len(a) > 0 {
				w.answer(a[len(a)-1], false)
			}
		}},
		{8, "commit", func() {
			if view > 0 {
				view++
			}
			if a := attaches(); len(a) > 0 {
				present = w.apps[a[len(a)-1]].formation
			}
			w.commit(present, view)
			present += uint32(rng.IntN(2))
		}},
		{1, "commit other", func() { w.commit(near(), view) }},
		{6, "record view", func() {
			if m, ok := pick(rng, w.r.Formed()); ok {
				view++
				w.recordView(m.Formation, view)
			}
		}},
		{2, "record other view", func() { w.recordView(near(), view-min(view, uint32(rng.IntN(3)))) }},
		{12, "write done", func() {
			if len(w.writes) > 0 {
				w.wrote(rng.IntN(len(w.writes)), true, true)
			}
		}},
		{1, "write failed", func() {
			if len(w.writes) > 0 {
				w.wrote(rng.IntN(len(w.writes)), coin(), false)
			}
		}},
		{4, "delete done", func() {
			if len(w.deletes) > 0 {
				w.deleted(rng.IntN(len(w.deletes)))
			}
		}},
		{2, "drop", func() {
			reasons := []mcrdmav1.Detached_Reason{mcrdmav1.Detached_REASON_ABORTED, mcrdmav1.Detached_REASON_CLOSED, mcrdmav1.Detached_REASON_REMOVED, mcrdmav1.Detached_REASON_SENDER_LOST}
			w.drop([]uint32{0, near(), present}[rng.IntN(3)], reasons[rng.IntN(len(reasons))])
		}},
		{2, "cancel", func() {
			if c, ok := pick(rng, slices.Sorted(maps.Keys(w.calls))); ok {
				w.cancel(c)
			}
		}},
		{1, "leave", func() {
			if a, ok := pick(rng, attaches()); ok {
				w.leave(a)
			}
		}},
		{4, "resume", func() {
			if a, ok := pick(rng, attaches()); ok {
				w.resume(a)
			}
			for _, x := range w.live() {
				if coin() {
					w.resume(x.attach)
				}
			}
		}},
		{1, "stop", func() { w.stop() }},
		{1, "session ended", func() { w.sessionEnded("app") }},
		{3, "beat", func() { w.beat(near()) }},
		{2, "a moment", func() { w.pass(worldLease/4, false) }},
		{1, "grace over", func() { w.pass(worldLease/3, true) }},
		{2, "restart", func() { w.restart(coin) }},
	}
	sum := 0
	for i := range events {
		if e := &events[i]; e.weight < 4 && coin() {
			e.weight = 0 // so that in some runs something lives for long
		}
		sum += events[i].weight
	}
	for step := range 20 + rng.IntN(60) {
		n := rng.IntN(sum)
		for _, e := range events {
			if n -= e.weight; n < 0 {
				if trace {
					fmt.Println(step, e.name)
				}
				e.do()
				break
			}
		}
		if w.err != nil {
			return fmt.Errorf("step %d: %w", step, w.err)
		}
	}
	w.settle()
	return w.err
}

// TestReceiverExplorer goes through all orders of a few events of a small world: two
// formations, a removal from each, one restart, one write that fails.
func TestReceiverExplorer(t *testing.T) {
	type step struct {
		name string
		left int // how often it may happen
		do   func(w *hostWorld)
	}
	last := func(f func(w *hostWorld, attach uint64)) func(*hostWorld) {
		return func(w *hostWorld) {
			if len(w.apps) > 0 {
				f(w, slices.Max(slices.Collect(maps.Keys(w.apps))))
			}
		}
	}
	written := func(known bool) func(*hostWorld) {
		return func(w *hostWorld) {
			if len(w.writes) > 0 {
				w.wrote(0, true, known)
			}
		}
	}
	steps := []step{
		{"prepare 1", 1, func(w *hostWorld) { w.prepare(1, "a", true, "app") }},
		{"prepare 2", 2, func(w *hostWorld) { w.prepare(2, "a", false, "app") }},
		{"prepare 2 otherwise", 1, func(w *hostWorld) { w.prepare(2, "b", false, "app") }},
		{"answer", 2, last(func(w *hostWorld, a uint64) { w.answer(a, false) })},
		{"commit 1", 1, func(w *hostWorld) { w.commit(1, 1) }},
		{"view 2", 1, func(w *hostWorld) { w.recordView(1, 2) }},
		{"view 3", 1, func(w *hostWorld) { w.recordView(1, 3) }},
		{"commit 2", 2, func(w *hostWorld) { w.commit(2, 4) }},
		{"write", 4, written(true)},
		{"lost write", 1, written(false)},
		{"delete", 1, func(w *hostWorld) {
			if len(w.deletes) > 0 {
				w.deleted(0)
			}
		}},
		{"restart", 1, func(w *hostWorld) { w.restart(func() bool { return true }) }},
		{"restart before", 1, func(w *hostWorld) { w.restart(func() bool { return false }) }},
		{"resume", 1, last(func(w *hostWorld, a uint64) { w.resume(a) })},
		{"drop 2", 1, func(w *hostWorld) { w.drop(2, mcrdmav1.Detached_REASON_ABORTED) }},
		{"close", 1, func(w *hostWorld) { w.drop(0, mcrdmav1.Detached_REASON_CLOSED) }},
		{"leave", 1, last(func(w *hostWorld, a uint64) { w.leave(a) })},
		{"lease ends", 1, func(w *hostWorld) { w.pass(worldLease+1, false) }},
	}
	most := 8
	switch {
	case testenv.Race:
		most = 6
	case os.Getenv("MCRDMA_LONG") != "":
		most = 11
	}
	run := func(path []int) *hostWorld {
		w := newHostWorld()
		for _, i := range path {
			steps[i].do(w)
		}
		return w
	}
	seen, runs := map[string]bool{}, 0
	level := [][]int{nil}
	for n := 0; n < most && len(level) > 0; n++ {
		var next [][]int
		for _, path := range level {
			before := run(path).key()
			for i, s := range steps {
				longer := append(slices.Clone(path), i)
				used := slices.Sorted(slices.Values(longer))
				if first, _ := slices.BinarySearch(used, i); len(used) > first+s.left && used[first+s.left] == i {
					continue
				}
				w := run(longer)
				runs++
				key := w.key()
				if w.err == nil && key == before {
					continue // nothing has happened
				}
				key += fmt.Sprint(used)
				if w.err == nil && seen[key] {
					continue
				}
				seen[key] = true
				next = append(next, longer)
				if w.settle(); w.err != nil {
					var names []string
					for _, i := range longer {
						names = append(names, steps[i].name)
					}
					t.Fatalf("%v, and then all ends: %v", names, w.err)
				}
			}
		}
		level = next
	}
	t.Logf("%d events: %d states, %d runs", most, len(seen), runs)
	if len(seen) < 3000 {
		t.Errorf("%d states only", len(seen))
	}
}

// key is a world's state.
func (w *hostWorld) key() string {
	out := fmt.Appendf(nil, "%v %d %s %d %v", w.broken, w.r.last, w.r.content, w.r.gone.formation, w.prepared)
	number := map[uint64]int{} // attachments in their order, but for those that are nowhere any more
	for _, a := range slices.Sorted(maps.Keys(w.apps)) {
		x := w.apps[a]
		if !x.ended || w.writing(a) || slices.Contains(w.deletes, a) || w.stored(x) {
			number[a] = len(number) + 1
			out = fmt.Appendf(out, "|%d %s %v %v %v %v %v", x.formation, x.content, x.joins, x.answered, x.formed, x.ended, x.loaded)
			out = fmt.Appendf(out, " %d %v", w.disk[a].Membership.View, w.stored(x))
		}
	}
	for _, x := range w.r.list {
		out = fmt.Appendf(out, ";%d %d %d %d %d %v %v %v %d %v", number[x.Attach], x.state, x.View, x.wanted.View, x.underWay.View, x.writing, x.stored, x.resumed, len(x.calls), x.expires.Sub(w.now))
		for _, o := range x.writers {
			out = fmt.Appendf(out, ",%d", o.view)
		}
	}
	for _, p := range w.writes {
		out = fmt.Appendf(out, "!%d %d", number[p.Membership.Attach], p.Membership.View)
	}
	for _, a := range w.deletes {
		out = fmt.Appendf(out, "-%d", number[a])
	}
	return string(out)
}
