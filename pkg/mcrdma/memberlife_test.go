package mcrdma

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

var memberSeed = flag.Uint64("member.seed", 0, "run the adversary of members' lives with this seed only, and print what happens")

// TestMemberLife plays a member's life against a daemon that asks, gives up, completes and ends
// formations at any time, loses what it has, and against a shell that does actions late and
// fails at any of them. Every action is held against what the daemon has said: see the methods
// of membership.
func TestMemberLife(t *testing.T) {
	if *memberSeed != 0 {
		if err := playMember(*memberSeed, true, deeds{}); err != nil {
			t.Fatal(err)
		}
		return
	}
	seeds := uint64(2000)
	if os.Getenv("MCRDMA_LONG") != "" {
		seeds = 100_000
	}
	all := deeds{}
	for s := uint64(1); s <= seeds; s++ {
		if err := playMember(s, false, all); err != nil {
			t.Fatalf("seed %d: %v\nagain: go test ./pkg/mcrdma -run 'TestMemberLife$' -member.seed=%d", s, err, s)
		}
	}
	t.Logf("%d seeds: %v", seeds, all)
	for _, k := range []string{"offered", "not offered", "carried", "not carried", "left", "told", "refused", "dropped while it carries",
		"given up, and it ends for what came before", "another is formed, and what came before does not count"} {
		if all[k] == 0 {
			t.Errorf("the adversary never sees: %s", k)
		}
	}
}

// A membership is one run: the truth.
type membership struct {
	rng   *rand.Rand
	trace bool
	deeds deeds
	l     memberLife
	todo  []action

	known    []*known
	carrying *known
	formed   *known // the daemon has said so, last
	own      error  // why it has ended by itself
	left     bool
	finished error
	refused  int
	late     int // questions after the end
}

// A known is an attach, as the daemon knows it.
type known struct {
	*attach
	asked    bool // the application has it
	answered bool
	gone     bool // the daemon has ended it, or lost it
	ends     bool // … and with it the member
	open     bool // it has resources
}

func (k *known) String() string { return fmt.Sprint(k.req.GetAttach()) }

func playMember(seed uint64, trace bool, d deeds) (err error) {
	w := &membership{rng: rand.New(rand.NewPCG(seed, 19)), trace: trace, deeds: d}
	defer func() {
		if p := recover(); p != nil {
			var ok bool
			if err, ok = p.(violation); !ok {
				panic(p)
			}
		}
	}()
	w.ask()
	for range 60 {
		w.act()
	}
	w.settle()
	return nil
}

func (w *membership) check(ok bool, format string, args ...any) {
	if !ok {
		panic(violation(fmt.Sprintf(format, args...)))
	}
}

func (w *membership) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *membership) step(name string, event func()) {
	event()
	for _, a := range w.l.out {
		w.check(w.finished == nil && !slices.ContainsFunc(w.todo, func(a action) bool { _, ok := a.(finish); return ok }) || late(a), "%T after the end", a)
		w.todo = append(w.todo, a)
		if w.trace {
			fmt.Printf("%s: %T %v\n", name, a, a)
		}
	}
	w.l.out = nil
}

func late(a action) bool { _, ok := a.(refuse); return ok }

func (w *membership) act() {
	switch w.rng.IntN(10) {
	case 0:
		w.ask()
	case 1, 2, 3, 4, 5:
		w.work()
	case 6, 7:
		w.form()
	case 8:
		if reason := mcrdmav1.Detached_Reason(w.rng.IntN(6)); reason >= mcrdmav1.Detached_REASON_ABORTED || w.chance(20) {
			w.detach(w.known[w.rng.IntN(len(w.known))], reason)
		}
	case 9:
		switch {
		case w.chance(20):
			w.resume()
		case w.chance(2):
			w.stop(errPlay)
		}
	}
}

// ask asks for another formation.
func (w *membership) ask() {
	n := uint64(len(w.known) + 1)
	k := &known{attach: &attach{req: &mcrdmav1.AttachRequested{Attach: n, Formation: uint32(n), Joins: n == 1}}, asked: true}
	w.known = append(w.known, k)
	if w.l.err != nil {
		w.late++
	}
	w.step(fmt.Sprint("asked ", n), func() { w.l.asked(k.attach) })
}

// form completes a formation that was answered.
func (w *membership) form() {
	k := w.known[len(w.known)-1]
	if !k.answered || k.gone || k == w.formed {
		return
	}
	if w.formed != nil && w.formed.ends && w.l.err == nil {
		w.deeds["another is formed, and what came before does not count"]++
	}
	w.formed = k
	w.tell(k, func(a *attach) { w.l.formed(a, nil) })
}

func (w *membership) tell(k *known, event func(*attach)) {
	w.step(fmt.Sprint("told: ", k), func() {
		if a := w.l.find(k.req.GetAttach()); a != nil {
			event(a)
		}
	})
}

func (w *membership) detach(k *known, reason mcrdmav1.Detached_Reason) {
	if k.gone || reason == mcrdmav1.Detached_REASON_REFORMED && (w.formed == nil || k.req.GetAttach() >= w.formed.req.GetAttach()) {
		return
	}
	keeps := k == w.formed && reason == mcrdmav1.Detached_REASON_ABORTED && !k.req.GetJoins()
	if k.gone = !keeps; k.gone && reason != mcrdmav1.Detached_REASON_REFORMED {
		k.ends = k == w.formed || reason != mcrdmav1.Detached_REASON_ABORTED
	}
	w.tell(k, func(a *attach) { w.l.detached(a, reason, "said "+k.String()) })
}

// resume has the daemon come back; it may have lost what was not durable, or all.
func (w *membership) resume() {
	for _, a := range []*attach{w.l.next, w.l.last} {
		if a == nil {
			continue
		}
		k := w.of(a)
		var err error
		if k.gone || k == w.formed && w.chance(10) || k != w.formed && w.chance(50) {
			k.gone, k.ends, err = true, k == w.formed, errPlay
			if w.chance(50) {
				err = fmt.Errorf("%w: said %v", ErrDaemon, k)
			}
		}
		w.step(fmt.Sprint("resumed ", k), func() { w.l.resumed(a, err) })
	}
}

func (w *membership) stop(why error) {
	if w.l.err == nil {
		w.own = why
	}
	w.step("stop", func() { w.l.stop(why, true) })
}

func (w *membership) of(a *attach) *known { return w.known[a.req.GetAttach()-1] }

// work does the next action.
func (w *membership) work() {
	if len(w.todo) == 0 {
		return
	}
	next := w.todo[0]
	w.todo = w.todo[1:]
	switch a := next.(type) {
	case drop:
		k := w.of(a.a)
		if w.carrying == k {
			w.carrying = nil
			w.deeds["dropped while it carries"]++
		}
		k.open = false
	case offer:
		k := w.of(a.a)
		w.check(w.carrying == nil, "%v is offered while %v carries: what it has is not known", k, w.carrying)
		k.open = true
		if w.chance(5) {
			k.gone = true
			w.deeds["not offered"]++
			w.step("offered", func() { w.l.offered(a.a, fmt.Errorf("said %v", k)) })
			return
		}
		k.answered = true
		w.deeds["offered"]++
	case refuse:
		w.refused++
		w.deeds["refused"]++
	case carry:
		k := w.of(a.a)
		w.check(k.open, "%v carries, and has been closed", k)
		w.check(w.carrying == nil, "%v carries while %v does", k, w.carrying)
		if w.chance(2) {
			w.deeds["not carried"]++
			w.stop(errPlay)
			return
		}
		w.carrying = k
		w.deeds["carried"]++
	case tell:
		w.deeds["told"]++
	case leave:
		w.check(!w.left && w.own != nil, "it leaves, and has not ended by itself")
		w.check(w.of(a.a) == w.present(), "it leaves %v, and is in %v", w.of(a.a), w.present())
		w.left = true
		w.deeds["left"]++
	case finish:
		w.finish(a.why)
	}
}

// present is the attach that a leaving member names: the one that is being made, or was last
// formed.
func (w *membership) present() *known {
	for i := len(w.known) - 1; i >= 0; i-- {
		if k := w.known[i]; k.open || k == w.formed {
			return k
		}
	}
	return nil
}

// finish judges the end: all is closed, and the reason is one that was given, for the last
// formation that was complete, or that the member would have begun with.
func (w *membership) finish(why error) {
	w.check(w.finished == nil, "it ends twice")
	w.finished = why
	for _, k := range w.known {
		w.check(!k.open, "%v is left open at the end", k)
	}
	if w.own != nil {
		w.check(errors.Is(why, w.own), "it has ended because of %v, and says %v", w.own, why)
		return
	}
	w.check(!w.left, "it has left, and not ended by itself")
	w.check(slices.ContainsFunc(w.known, func(k *known) bool {
		return w.formed == nil && k.gone || k.ends && (w.formed == nil || k.req.GetAttach() >= w.formed.req.GetAttach())
	}), "it ends, and no reason was given: %v", why)
	if w.formed != nil && w.formed.ends && w.known[len(w.known)-1] != w.formed {
		w.deeds["given up, and it ends for what came before"]++
	}
}

// settle has the daemon end all that it has.
func (w *membership) settle() {
	for _, k := range w.known {
		w.detach(k, mcrdmav1.Detached_REASON_CLOSED)
	}
	for len(w.todo) > 0 {
		w.work()
	}
	w.check(w.finished != nil, "the daemon has ended all, and the member goes on: next %v, last %v, pending %v", w.l.next, w.l.last, w.l.pending)
	w.check(w.refused == w.late, "%d questions came after the end, %d were refused", w.late, w.refused)
}
