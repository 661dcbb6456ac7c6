package mcrdma

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

var (
	lifeSeed  = flag.Uint64("life.seed", 0, "run the adversary of lives with this seed only, and print what happens")
	lifeSteps = flag.Int("life.steps", 400, "of a run, before it is left to itself")
)

// TestLife plays a group's life against a daemon, receivers, a path and an application that
// do everything at the worst time: receivers die, paths end, the daemon restarts and loses
// what is on its way, answers are lost, hooks are slow or fail. It holds every action
// against what has really happened: see the methods of trial.
func TestLife(t *testing.T) {
	if *lifeSeed != 0 {
		if err := playLife(*lifeSeed, true, &deeds{}); err != nil {
			t.Fatal(err)
		}
		return
	}
	seeds := uint64(4000)
	if os.Getenv("MCRDMA_LONG") != "" {
		seeds = 100_000
	}
	var next atomic.Uint64
	var wg sync.WaitGroup
	var mu sync.Mutex
	all := deeds{}
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			mine := deeds{}
			for s := next.Add(1); s <= seeds && !t.Failed(); s = next.Add(1) {
				if err := playLife(s, false, &mine); err != nil {
					t.Errorf("seed %d: %v\nagain: go test ./pkg/mcrdma -run 'TestLife$' -life.seed=%d", s, err, s)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for k, n := range mine {
				all[k] += n
			}
		})
	}
	wg.Wait()
	t.Logf("%d seeds: %v", seeds, all)
	for _, k := range []string{"completed", "failed", "views", "acks", "acks again", "removals by view", "removals without", "formations", "catching up",
		"added", "add refused", "removed", "resumed", "stale", "closed", "group failed", "hook failed", "restarts", "all new", "stalls"} {
		if all[k] == 0 {
			t.Errorf("the adversary never sees: %s", k)
		}
	}
}

// deeds count what happened in all runs.
type deeds map[string]int

// A trial is one run: the truth.
type trial struct {
	rng   *rand.Rand
	trace bool
	deeds deeds
	now   time.Time
	l     life
	quiet bool // nothing fails any more

	// The sender's shell:
	ops       []*Op
	submitted int
	handed    int
	completed int // of those, without an error
	hooks     []View
	hooked    map[uint32]bool // views that the hook has taken
	lastView  View            // the last of them
	acked     []uint32        // on their way to the daemon
	carrying  bool
	cut       error
	halted    bool
	finished  bool // the last event was told
	asked     bool // the daemon has not answered
	drained   bool
	additions int

	// What the application was told:
	in     map[string]bool // who is a member, as its events say
	since  map[string]int  // the operation from which on a member has everything
	gone   map[string]int  // operations that were complete when a view without it was hooked
	reform uint32

	// The daemon:
	counts  bool // views
	form    *mcrdmav1.FormationInfo
	view    uint32
	members []string
	pending *removal
	to      []*mcrdmav1.GroupChanged // events on their way
	ended   bool
	away    bool // restarted: it is to be resumed

	// The path of the present formation:
	bySwitch bool
	posted   int      // operations
	merge    []string // who has to acknowledge
	acks     int      // operations that the path has as acknowledged
	hosts    map[string]*copyOf
}

type removal struct {
	view   uint32
	out    string
	left   []string
	broken bool // members' daemons cannot record it: the group is to be formed anew
}

// A copyOf is what a receiver has.
type copyOf struct {
	dead bool   // or taken for it
	at   int    // the operation that comes next, in this formation
	got  int    // operations, from the one on with which it joined
	join int    // that one
	have uint64 // messages
	left int    // operations that it had when it was a member before
}

var errPlay = errors.New("for the test")

func (f *trial) logf(format string, args ...any) {
	if f.trace {
		fmt.Printf(format+"\n", args...)
	}
}

func (f *trial) chance(percent int) bool { return !f.quiet && f.rng.IntN(100) < percent }

func playLife(seed uint64, trace bool, d *deeds) (err error) {
	rng := rand.New(rand.NewPCG(seed, 18))
	f := &trial{rng: rng, trace: trace, deeds: *d, now: time.Unix(1e9, 0), hooked: map[uint32]bool{}, in: map[string]bool{}, since: map[string]int{}, gone: map[string]int{},
		hosts: map[string]*copyOf{}, counts: rng.IntN(4) > 0}
	defer func() {
		if p := recover(); p != nil {
			if e, ok := p.(violation); ok {
				err = e
				return
			}
			panic(p)
		}
	}()
	for i := range 1 + rng.IntN(4) {
		f.members = append(f.members, string(rune('a'+i)))
	}
	for i := range 8 {
		f.hosts[string(rune('a'+i))] = &copyOf{}
	}
	f.l.needViews = f.counts && rng.IntN(2) == 0
	f.quiet = true
	f.make(&mcrdmav1.ReformGroupRequest{}, 0, f.members)
	f.quiet = false
	f.step("created", func() { f.l.created(f.form) })
	for range *lifeSteps {
		f.act(rng.IntN(30))
	}
	f.settle()
	return nil
}

type violation string

func (v violation) Error() string { return string(v) }

func (f *trial) check(ok bool, format string, args ...any) {
	if !ok {
		panic(violation(fmt.Sprintf(format, args...)))
	}
}

// act does something. What is not possible now is not done.
func (f *trial) act(what int) {
	switch what {
	case 0, 1, 2:
		f.submit()
	case 3, 4, 5, 6, 7, 8:
		f.run()
	case 9, 10, 11, 12, 13:
		f.receive()
	case 14, 15, 16:
		f.poll(f.rng.IntN(4))
	case 17, 18:
		f.hear()
	case 19:
		f.takeView()
	case 20:
		f.takeAck()
	case 21:
		f.now = f.now.Add(time.Duration(f.rng.IntN(400)) * time.Millisecond)
		f.step("look", func() {
			if _, stall := f.l.lookedAt(f.now, f.now.Add(-time.Duration(f.rng.IntN(1000))*time.Millisecond)); stall {
				f.deeds["stalls"]++
			}
		})
	case 22:
		if f.chance(50) {
			f.die()
		}
	case 23:
		f.goOn()
	case 24:
		if f.chance(30) && f.carrying && f.cut == nil {
			f.cut = errPlay
			if f.chance(50) {
				f.cut = &formationError{err: errPlay, blame: f.chance(60), refused: f.chance(30), suspects: f.members[:f.rng.IntN(2)]}
			}
		}
	case 25:
		if f.chance(30) {
			f.restart()
		}
	case 26:
		f.resume()
	case 27:
		f.add()
	case 28:
		switch {
		case f.chance(1):
			f.end()
		case f.chance(1):
			f.step("drain", f.l.drain)
		}
	case 29:
		f.tree()
	}
}

// settle lets all that has begun come to its end, and closes the group.
func (f *trial) settle() {
	f.logf("-- settle")
	f.quiet = true
	for n := 0; !f.finished; n++ {
		f.check(n < 20_000, "it hangs: state %v, job %d, %d told, %d under way, cut %v, daemon away %v", f.l.state, f.l.job, len(f.l.told), f.l.queue.ops.len(), f.cut, f.away)
		f.resume()
		f.hear()
		f.takeView()
		f.takeAck()
		f.goOn()
		f.receive()
		f.poll(100)
		f.run()
		f.now = f.now.Add(50 * time.Millisecond)
		f.step("look", func() { f.l.lookedAt(f.now, f.now) })
		if n == 2000 {
			for a, in := range f.in {
				f.check(f.l.state != active || in == slices.Contains(f.members, a), "%s is a member: %v, and the application was told: %v", a, !in, in)
			}
			f.step("drain", f.l.drain)
		}
		if f.drained && !f.halted {
			f.step("stop", func() { f.l.stop(errClosing) })
		}
	}
	f.check(f.handed == f.submitted, "%d operations were handed back of %d", f.handed, f.submitted)
	for range 30 { // nothing comes after the end
		f.act(f.rng.IntN(30))
		f.hear()
		f.step("late hook", func() { f.l.hooked(f.view, nil) })
		f.step("late daemon", func() { f.l.resumed(f.form) })
		f.step("late look", func() { f.l.lookedAt(f.now.Add(time.Hour), f.now) })
	}
	if !f.l.draining || f.completed == f.submitted {
		f.deeds["closed"]++
	}
}

// step gives the life an event, and judges what it does.
func (f *trial) step(name string, event func()) {
	before := f.l.state
	event()
	if f.l.state != before {
		f.logf("%s: %v → %v", name, before, f.l.state)
	}
	ok := f.l.state == before || f.l.state == closing || before == forming && f.l.state == active || before == active && f.l.state == reForming ||
		before == reForming && f.l.state == active || before == closing && f.l.state == closed
	f.check(ok && (before < closing || f.l.state >= before), "from %v to %v by %s", before, f.l.state, name)
	out := f.l.out
	f.l.out = nil
	for _, a := range out {
		f.logf("  %s: %T %+v", name, a, a)
		f.perform(a)
	}
}

func (f *trial) perform(a action) {
	f.check(!f.finished, "after the end: %T %+v", a, a)
	switch a := a.(type) {
	case cut:
		if f.carrying && f.cut == nil {
			f.cut = a.why
		}
	case halt:
		f.check(!f.halted, "ended twice")
		for _, lie := range []string{"receivers have", "after view", "counts no views"} {
			f.check(!strings.Contains(a.why.Error(), lie), "the daemon is said to lie: %v", a.why)
		}
		f.halted = true
	case tell:
		f.told(a.event)
	case show:
		f.check(len(f.hooks) == 0, "view %d is shown while the hook has %d", a.view.Number, len(f.hooks))
		f.check(a.view.Number > f.lastView.Number, "view %d after %d", a.view.Number, f.lastView.Number)
		f.hooks = append(f.hooks, a.view)
	case ack:
		f.check(f.hooked[a.view], "view %d is acknowledged before the hook has it", a.view)
		f.check(f.l.view.Number >= a.view, "view %d is acknowledged, and completions carry %d", a.view, f.l.view.Number)
		f.acked = append(f.acked, a.view)
	case answer:
		f.additions--
		a.to.done <- a // a second answer would wait forever
		if a.err != nil {
			f.deeds["add refused"]++
		} else {
			for _, r := range a.to.receivers {
				f.check(slices.Contains(addresses(f.l.info.GetMembers()), r), "%s is said to be added, and is no member", r)
				f.check(a.cut >= f.l.from[r], "%s is said to have operations from %d on, and the view says %d", r, a.cut, f.l.from[r])
			}
		}
	case nudge:
	case drained:
		f.check(f.handed+len(f.l.batch) == f.submitted, "drained with operations under way")
		f.drained = true
	}
}

// told judges an event for the application.
func (f *trial) told(e Event) {
	switch e.Type {
	case EventRemoved:
		f.check(f.in[e.Address], "%s is removed, and was no member", e.Address)
		f.in[e.Address] = false
		h := f.hosts[e.Address]
		f.check(h.got < 0 || int(e.Operation) <= max(h.got, h.left), "%s is said to have %d operations, and has %d", e.Address, e.Operation, max(h.got, h.left))
		if n, ok := f.gone[e.Address]; ok {
			f.check(int(e.Operation) == n, "%s was in the view until operation %d, and is said to have %d", e.Address, n, e.Operation)
		}
		d := f.l.goneOf(e.Address)
		f.check(d != nil && d.Operation == e.Operation, "%s is removed with %d operations, and listed is %+v", e.Address, e.Operation, d)
		f.check(int(d.From) == f.since[e.Address], "%s was a member from operation %d on, and listed is %+v", e.Address, f.since[e.Address], d)
		f.deeds["removed"]++
	case EventAdded:
		f.check(!f.in[e.Address], "%s is added, and was not removed", e.Address)
		f.check(slices.Contains(addresses(f.form.GetMembers()), e.Address) || e.Formation < f.form.GetFormation(), "%s is added, and is not in the formation", e.Address)
		f.check(e.Operation == f.l.stats.Completed, "%s has operations from %d on, and is said to from %d on", e.Address, f.l.stats.Completed, e.Operation)
		f.check(e.Operation == f.l.from[e.Address], "%s has operations from %d on, and the view says from %d on", e.Address, e.Operation, f.l.from[e.Address])
		f.in[e.Address], f.since[e.Address] = true, int(e.Operation)
		delete(f.gone, e.Address)
		f.deeds["added"]++
	case EventReformed:
		f.check(e.Formation > f.reform && e.Formation == f.l.info.GetFormation(), "formation %d is told after %d", e.Formation, f.reform)
		f.reform = e.Formation
	case EventClosed, EventFailed:
		f.check(f.l.state == closed && f.handed == f.submitted, "the end is told while %d operations of %d are handed back", f.handed, f.submitted)
		f.finished = true
		if e.Type == EventFailed {
			f.deeds["group failed"]++
		}
	case EventResumed:
		f.deeds["resumed"]++
	}
}

func (l *life) goneOf(address string) *departure {
	if i := slices.IndexFunc(l.gone, func(d *departure) bool { return d.Address == address }); i >= 0 {
		return l.gone[i]
	}
	return nil
}

func addresses(list []*mcrdmav1.Member) (out []string) {
	for _, m := range list {
		out = append(out, m.GetAddress())
	}
	return out
}

func (f *trial) submit() {
	if f.l.state >= closing || f.l.draining || f.quiet || f.l.queue.ops.len() > 20 {
		return
	}
	op := &Op{Kind: Kind(f.rng.IntN(3)), size: 1}
	op.At.Offset = uint64(f.rng.IntN(30))
	f.ops = append(f.ops, op)
	f.l.queue.push(op)
	f.submitted++
	f.post()
}

// post does as the paths do.
func (f *trial) post() {
	for f.carrying && f.l.queue.next() != nil {
		f.l.queue.advance()
		f.posted++
	}
}

// hand hands the batch back.
func (f *trial) hand(err error) {
	for _, op := range f.l.batch {
		f.check(f.handed < f.submitted && op == f.ops[f.handed], "operation %d is not the next that is handed back", f.handed)
		if err == nil {
			f.complete(op, f.handed)
		} else {
			f.deeds["failed"]++
		}
		f.handed++
	}
	f.l.batch = f.l.batch[:0]
}

// complete judges a completion: each member of its view has it.
func (f *trial) complete(op *Op, n int) {
	f.deeds["completed"]++
	f.completed++
	if !f.counts {
		f.check(op.View == 0, "view %d of a daemon that counts none", op.View)
		return
	}
	f.check(slices.ContainsFunc(f.lastView.Members, func(p Peer) bool {
		h := f.hosts[p.Address]
		return h.join <= n && n < h.got
	}), "operation %d is complete, and no member has it", n)
	f.check(op.View == f.lastView.Number, "operation %d is complete with view %d, the hook has %d", n, op.View, f.lastView.Number)
	for a, in := range f.in {
		if d := f.l.goneOf(a); in && !f.lastView.has(a) {
			f.check(d != nil && int(d.Operation) <= n, "operation %d is complete without %s, and listed is %+v", n, a, d)
		}
	}
	for _, p := range f.lastView.Members {
		h := f.hosts[p.Address]
		f.check(int(p.From) == h.join, "member %s has operations from %d on, and the view says from %d on", p.Address, h.join, p.From)
		f.check(n < h.join || n < h.got, "operation %d is complete with view %d, and member %s has %d", n, op.View, p.Address, h.got)
	}
}

// run does what the runner does next.
func (f *trial) run() {
	if f.finished || f.asked {
		f.ask()
		return
	}
	if f.carrying {
		if f.cut != nil || f.halted {
			f.poll(f.rng.IntN(100)) // what is flushed
			f.carrying = false
			cause := f.cut
			if f.halted {
				cause = errClosing
			}
			f.cut = nil
			f.step("ended", func() { f.l.ended(cause) })
		}
		return
	}
	j, _ := f.l.next(f.now)
	switch j {
	case connecting:
		var err error
		if f.chance(20) {
			err = errPlay
		}
		f.step("connected", func() { f.l.connected(err, f.now) })
	case beginning:
		f.begin()
	case blaming:
		f.step("blamed", func() { f.l.blamed(f.members[:f.rng.IntN(len(f.members)+1)]) })
	case asking:
		f.asked = true
	case ending:
		f.check(f.halted, "the runner's end, and nothing was halted")
		f.step("finish", f.l.finish)
		f.hand(errPlay)
		f.step("over", f.l.over)
	}
}

func (f *trial) begin() {
	info := f.l.re.next
	f.check(len(f.hooks) == 0, "formation %d begins while the hook has a view", info.GetFormation())
	first := f.l.state == forming
	f.carrying, f.cut = true, nil
	if f.counts {
		f.check(f.hooked[info.GetView()], "formation %d begins, and the hook has not seen view %d", info.GetFormation(), info.GetView())
	}
	if first {
		for _, m := range info.GetMembers() {
			f.in[m.GetAddress()] = true
		}
	}
	// Receivers that joined with a formation after the last one that began have nothing from before.
	fresh := f.l.stats.Completed
	f.bySwitch = Path(info.GetPath()) == PathSwitch
	f.step("begin", func() { f.l.begin() })
	for _, m := range info.GetMembers() {
		h := f.hosts[m.GetAddress()]
		if h.got < 0 { // it joins
			h.join, h.got = int(f.l.stats.Completed), int(f.l.stats.Completed)
		}
	}
	f.logf("  begun after %d and %d", fresh, f.l.stats.Completed)
	f.posted, f.acks = int(f.l.stats.Completed), int(f.l.stats.Completed)
	if f.form.GetFormation() == info.GetFormation() {
		f.merge = slices.Clone(f.members)
		if f.pending != nil { // the switches still wait for it
			f.merge = append(f.merge, f.pending.out)
		}
	} else {
		f.merge = addresses(info.GetMembers())
	}
	for _, a := range f.merge {
		f.hosts[a].at = f.posted
	}
	f.hand(nil)
	f.post()
	f.check(f.l.stats.Completed == uint64(f.completed), "%d are complete, %d are counted", f.completed, f.l.stats.Completed)
}
