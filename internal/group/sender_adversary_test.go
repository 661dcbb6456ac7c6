package group_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/group"
)

var (
	senderSeed  = flag.Uint64("group.sender.seed", 0, "run the sender's adversary with this seed only")
	senderTrace = flag.Bool("group.sender.trace", false, "print all that happens")
)

// TestSenderAdversary drives a Sender against model receivers, a model switch, a disk and an
// application. Every seed is another scenario: answers come late, twice, in any order or not at
// all, the daemon restarts at any time, also before and after each write, calls are cancelled,
// receivers leave and come back, and the group is closed.
func TestSenderAdversary(t *testing.T) {
	if *senderSeed != 0 {
		if err := runSender(*senderSeed, "", &senderTally{}); err != nil {
			t.Fatal(err)
		}
		return
	}
	seeds := uint64(2000)
	if os.Getenv("MCRDMA_LONG") != "" {
		seeds = 100_000
	}
	var next atomic.Uint64
	var wg sync.WaitGroup
	var mu sync.Mutex
	var total senderTally
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			var mine senderTally
			for s := next.Add(1); s <= seeds && !t.Failed(); s = next.Add(1) {
				if err := runSender(s, "", &mine); err != nil {
					t.Errorf("%v\nreplay: go test ./internal/group -run 'TestSenderAdversary$' -group.sender.seed=%d -group.sender.trace", err, s)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total.formed += mine.formed
			total.removed += mine.removed
			total.restarts += mine.restarts
			total.failed += mine.failed
			total.undone += mine.undone
			total.broken += mine.broken
		})
	}
	wg.Wait()
	t.Logf("%d seeds: %+v", seeds, total)
	if n := int(seeds); total.formed < n || total.removed < n/10 || total.restarts < n/2 || total.failed < n/20 || total.undone < n/4 || total.broken < n/10 {
		t.Errorf("the adversary does not exercise what it should: %+v", total)
	}
}

// senderTally counts what has happened, so that a run that tests nothing is noticed.
type senderTally struct{ formed, removed, restarts, failed, undone, broken int }

// senderMistakes are mistakes that the adversary must find.
var senderMistakes = []string{
	"news between installation and formation is lost",
	"failure is told before it is durable",
	"a late formation is not ended",
	"an update before the members have recorded the view",
	"an update before the application has acknowledged the view",
	"an update before the record is durable",
	"a number is not durable before receivers learn it",
	"views are not reserved",
	"an ended group is not recorded as ended",
	"the switch keeps what was given up",
	"a number is not freed",
	"a receiver has not committed",
	"a call has no answer",
	"a removal is told twice",
	"receivers are told another reason",
}

// TestSenderMistakes: the adversary finds each.
func TestSenderMistakes(t *testing.T) {
	for _, m := range senderMistakes {
		found := error(nil)
		for seed := uint64(1); seed <= 3000 && found == nil; seed++ {
			found = runSender(seed, m, &senderTally{})
		}
		if found == nil {
			t.Errorf("not found: %s", m)
		} else {
			t.Logf("%s: %v", m, found)
		}
	}
}

// event is something that others do.
func (w *senderWorld) event() {
	a := senderAddr(1 + w.rnd.IntN(len(w.members)))
	m := w.members[a]
	p := &w.app
	switch n := w.rnd.IntN(100); {
	case n < 4 && w.s != nil: // it is silent, and yet there
		w.trace("%v is silent", a)
		w.s.Lose(a, group.Loss{Label: "silent", Why: "it is silent"}, w.now)
		w.settle()
	case n < 10: // it leaves; its daemon says so some time later
		m.there = false
		clear(m.forms)
		w.later(func() {
			if w.s != nil && !m.there {
				w.trace("%v is lost", a)
				w.s.Lose(a, group.Loss{Label: "left", Why: "it has left"}, w.now)
				w.settle()
			}
		})
	case n < 25:
		m.there = true
	case n < 45 || p.broken && n < 75:
		w.reform(a)
	case n < 50 && w.s != nil:
		for _, id := range slices.Sorted(maps.Keys(p.calls)) {
			w.trace("call %d is cancelled", id)
			w.s.Cancelled(id, errors.New("cancelled"), w.now)
			w.settle()
			break
		}
	case n < 65 && w.s != nil:
		w.news(a)
	case n < 68 && w.s != nil:
		if f := w.s.Status().Form; f != nil {
			w.s.Missing(f.MCID, true, false, w.now)
			w.settle()
		}
	case n < 70:
		w.restart("at any time")
	case n < 71:
		w.close(w.chance(50))
	}
}

func (w *senderWorld) reform(a netip.Addr) {
	p := &w.app
	if p.form == nil || p.ended || w.s == nil {
		return
	}
	again := group.Again{Formation: p.form.N}
	if w.chance(30) {
		again.Suspects = append(again.Suspects, a)
	}
	if f := w.s.Status().Form; f != nil && !f.Has(a) {
		again.Add = append(again.Add, a)
	}
	w.call("Reform", func(s *group.Sender, call group.Call) { s.Reform(call, again, w.now) })
}

// news tells what the agent has found out about a formation that it has.
func (w *senderWorld) news(a netip.Addr) {
	status := w.s.Status()
	id := status.Making
	if id == 0 && status.Form != nil {
		id = status.Form.MCID
	}
	if _, ok := w.installed[id]; !ok {
		return
	}
	var list []string
	if w.chance(40) {
		list = []string{a.String() + ": no route"}
	}
	w.problems[id] = list
	if w.mistake == "news between installation and formation is lost" && status.Making == id {
		return
	}
	w.trace("news of %d: %q", id, list)
	w.s.News(id, list, w.now)
	w.settle()
}

// close ends the group as its application asks, or because that is gone.
func (w *senderWorld) close(gone bool) {
	p := &w.app
	if w.s == nil || p.ended {
		return
	}
	w.trace("close, gone: %v", gone)
	for _, what := range p.calls {
		if what == "Create" {
			gone = true
		}
	}
	p.ended, p.gone, p.closed = true, gone, !gone
	if gone {
		w.s.Close(0, group.Ending{Reason: mcrdmav1.Detached_REASON_SENDER_LOST, Text: "gone"}, w.now)
		w.settle()
		return
	}
	w.call("Close", func(s *group.Sender, call group.Call) {
		s.Close(call.ID, group.Ending{Reason: mcrdmav1.Detached_REASON_CLOSED}, w.now)
	})
}

func newSenderWorld(seed uint64, mistake string, tally *senderTally) *senderWorld {
	return &senderWorld{rnd: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(0, 0), mistake: mistake, tally: tally, members: map[netip.Addr]*senderMember{},
		installed: map[uint32][]netip.Addr{}, taken: map[uint32]int{}, numbers: map[uint32]uint32{}, views: map[uint32]string{}, problems: map[uint32][]string{},
		app: senderApp{calls: map[uint64]string{}, removed: map[netip.Addr]bool{}}}
}

func newSenderMember(there bool) *senderMember {
	return &senderMember{there: there, forms: map[uint32]bool{}, committed: map[uint32]bool{}, joined: map[uint32]bool{}}
}

func runSender(seed uint64, mistake string, tally *senderTally) (err error) {
	w := newSenderWorld(seed, mistake, tally)
	defer func() {
		if p := recover(); p != nil && !*senderTrace {
			err = fmt.Errorf("panic: %v", p)
		} else if p != nil {
			panic(p)
		}
	}()
	w.app.views = w.chance(70)
	var first []netip.Addr
	for i := range 2 + w.rnd.IntN(4) {
		w.members[senderAddr(i+1)] = newSenderMember(!w.chance(3))
		if i < 4 {
			first = append(first, senderAddr(i+1))
		}
	}
	w.calm = w.rnd.IntN(100) < 60 // at first
	w.waits = seed%2 == 0
	w.s = group.NewSender(w.config())
	w.call("Create", func(s *group.Sender, call group.Call) {
		s.Create(call, group.Endpoint{QPN: 3}, first, w.app.views, w.now)
	})
	if w.rnd.IntN(100) < 70 {
		w.pass(200 * time.Millisecond)
	}
	w.calm = false
	for range 5 + w.rnd.IntN(40) {
		if w.chance(60) {
			w.pass(time.Duration(w.rnd.IntN(30)) * time.Millisecond)
		} else if w.chance(20) {
			w.pass(time.Duration(w.rnd.IntN(8000)) * time.Millisecond)
		}
		w.event()
	}
	w.settleAll()
	return w.err
}

// settleAll has all come to rest without further faults, and then ends the group: nothing may be left.
func (w *senderWorld) settleAll() {
	w.calm = true
	w.pass(30 * time.Second)
	w.leases()
	w.atRest()
	w.close(false)
	w.pass(2 * time.Minute)
	w.leases()
	if w.err == nil && w.s != nil {
		w.fail("it is %v long after its end, and %d outcomes are to come", w.s.Status().State, len(w.pending))
	}
	for a, m := range w.members {
		if len(m.forms) > 0 {
			w.fail("%v still has %v", a, m.forms)
		}
	}
	for id := range w.installed {
		w.fail("the switch still has MC_ID %d", id)
	}
}

// atRest checks what holds when nothing happens any longer.
func (w *senderWorld) atRest() {
	if w.s == nil {
		return
	}
	s := w.s.Status()
	if s.Form == nil {
		return
	}
	switch {
	case s.State != group.Active && s.State != group.Broken && s.State != group.Closing:
		w.fail("it is %v for long", s.State)
	case s.State != group.Active || w.app.ended:
	case s.Form.Path == mcrdmav1.Path_PATH_SWITCH:
		for _, a := range s.Form.Addrs() {
			if slices.Contains(w.problems[s.Form.MCID], a.String()+": no route") {
				w.fail("%v cannot be reached, and the application is not asked to form the group anew", a)
			}
		}
		if !slices.Equal(w.installed[s.Form.MCID], s.Form.Addrs()) {
			w.fail("the switch has %v, and the group %v", w.installed[s.Form.MCID], s.Form.Addrs())
		}
	}
	for a, m := range w.members {
		for n := range m.forms {
			if !s.Form.Has(a) || n < s.Form.N {
				w.fail("%v has formation %d, and the group is at %d with %v", a, n, s.Form.N, s.Form.Addrs())
			}
		}
	}
}
