package group_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/group"
)

// TestSenderExplorer goes through all orders of a few events of a small world: outcomes that
// come in any order or fail, receivers that are lost, a new formation, the end, a restart before
// or after any write. In each state the invariants of the adversary hold, and from each the
// world comes to rest and can be ended, and nothing is left.
func TestSenderExplorer(t *testing.T) {
	more := 0
	if os.Getenv("MCRDMA_LONG") != "" {
		more = 1
	}
	for _, r := range senderRoots {
		x := explorer{root: r}
		if err := x.explore(r.depth + more); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
		t.Logf("%s: %d events: %d states, %d runs", r.name, r.depth+more, len(x.seen), x.runs)
		if len(x.seen) < 200 {
			t.Errorf("%s: %d states only", r.name, len(x.seen))
		}
	}
}

// TestSenderExplorerMistakes: the explorer finds each of these.
func TestSenderExplorerMistakes(t *testing.T) {
	for _, m := range senderMistakes {
		if m == "views are not reserved" { // more than two faults show that, which is for the adversary
			continue
		}
		var found error
		for _, r := range senderRoots {
			if found == nil {
				x := explorer{root: r, mistake: m}
				found = x.explore(r.depth)
			}
		}
		if found == nil {
			t.Errorf("not found: %s", m)
		} else {
			t.Logf("%s: %v", m, found)
		}
	}
}

// A senderRoot is where exploration begins.
type senderRoot struct {
	name  string
	depth int
	begin func(w *senderWorld)
}

var senderRoots = []senderRoot{
	{"a new group", 5, func(w *senderWorld) { w.create(2) }},
	{"a new group commits", 4, func(w *senderWorld) {
		w.create(2)
		w.until("commit")
	}},
	{"an active group", 4, func(w *senderWorld) {
		w.create(3)
		w.flush()
	}},
	{"a removal is announced", 4, func(w *senderWorld) {
		w.create(3)
		w.flush()
		w.lose(1)
		w.until("record")
	}},
	{"re-forming", 4, func(w *senderWorld) {
		w.create(3)
		w.flush()
		w.again(1)
	}},
	{"re-forming commits", 4, func(w *senderWorld) {
		w.create(3)
		w.flush()
		w.again(1)
		w.until("commit")
	}},
}

func (w *senderWorld) create(n int) {
	var to []netip.Addr
	for i := range n {
		to = append(to, senderAddr(i+1))
		w.members[senderAddr(i+1)] = newSenderMember(true)
	}
	w.call("Create", func(s *group.Sender, call group.Call) { s.Create(call, group.Endpoint{QPN: 3}, to, w.app.views, w.now) })
}

// flush has all outcomes come that are due, as they should.
func (w *senderWorld) flush() {
	for len(w.pending) > 0 {
		w.deliver(0, "")
	}
}

// until has outcomes come until one of an action is the next.
func (w *senderWorld) until(action string) {
	for !strings.HasPrefix(w.pending[0].name, action) {
		w.deliver(0, "")
	}
}

func (w *senderWorld) deliver(i int, fault string) {
	p := w.pending[i]
	w.pending = slices.Delete(w.pending, i, i+1)
	if p.run != w.run {
		return
	}
	w.doing, w.fault = p.name+"'", fault
	p.f()
	w.fault = ""
}

func (w *senderWorld) lose(i int) {
	a := senderAddr(i)
	w.members[a].there = false
	clear(w.members[a].forms)
	if w.s != nil {
		w.s.Lose(a, group.Loss{Label: "left", Why: "it has left"}, w.now)
		w.settle()
	}
}

// again asks for the next formation, and suspects a receiver.
func (w *senderWorld) again(i int) {
	if w.app.form == nil || w.app.ended || w.s == nil {
		return
	}
	again := group.Again{Formation: w.app.form.N, Suspects: []netip.Addr{senderAddr(i)}}
	w.call("Reform", func(s *group.Sender, call group.Call) { s.Reform(call, again, w.now) })
}

// senderActionName names an action, for the outcome that it has.
func senderActionName(a group.SenderAction) string {
	switch a := a.(type) {
	case group.SaveGroup:
		return fmt.Sprint("save ", a.Version)
	case group.PrepareMember:
		return fmt.Sprint("prepare ", a.Formation.N, a.Addr)
	case group.InstallFormation:
		return fmt.Sprint("install ", a.Formation.N)
	case group.CommitMember:
		return fmt.Sprint("commit ", a.Formation.N, a.Addr)
	case group.RecordMembers:
		return fmt.Sprint("record ", a.Next.View, a.Addr)
	case group.UpdateSwitch:
		return fmt.Sprint("update ", a.Next.View)
	case group.CleanUp:
		return fmt.Sprint("clean up ", a.Job.Addr, a.Job.MCID, a.Job.Formation)
	default:
		return fmt.Sprintf("%T", a)
	}
}

// A step is one event.
type senderStep struct {
	name  string
	fault bool // see mostFaults
	do    func(w *senderWorld)
}

// steps are what may happen next, in the same order in the same state.
func (w *senderWorld) next() (list []senderStep) {
	add := func(name string, fault bool, do func(w *senderWorld)) {
		list = append(list, senderStep{name, fault, do})
	}
	for i, p := range w.pending {
		if p.run != w.run {
			continue
		}
		what, _, _ := strings.Cut(p.name, " ")
		faults := map[string][]string{"prepare": {"refused", "lost", "answer lost"}, "install": {"refused", "relay", "old left"}, "commit": {"lost", "answer lost"},
			"record": {"lost", "answer lost"}, "update": {"lost", "answer lost"}, "clean": {"lost", "answer lost"}, "save": {"restart after"}}[what]
		for _, f := range append([]string{""}, faults...) {
			add(strings.TrimSpace(p.name+" "+f), f != "", func(w *senderWorld) { w.deliver(i, f) })
		}
	}
	for i := range min(2, len(w.members)) {
		if w.members[senderAddr(i+1)].there {
			add(fmt.Sprintf("%v is lost", senderAddr(i+1)), true, func(w *senderWorld) { w.lose(i + 1) })
		}
	}
	if w.s == nil {
		return list
	}
	if w.app.form != nil && !w.app.ended {
		add("reform", true, func(w *senderWorld) { w.again(1) })
	}
	if !w.app.ended {
		add("close", true, func(w *senderWorld) { w.close(false) })
		add("the application ends", true, func(w *senderWorld) { w.close(true) })
	}
	for id := range w.app.calls {
		if w.app.calls[id] != "Close" {
			add(fmt.Sprint("cancel ", id), true, func(w *senderWorld) {
				w.s.Cancelled(id, errors.New("cancelled"), w.now)
				w.settle()
			})
		}
	}
	if s := w.s.Status(); s.Making != 0 && w.installed[s.Making] != nil || s.Form != nil && w.installed[s.Form.MCID] != nil {
		add("news", true, func(w *senderWorld) { w.unreachable() })
	}
	add("restart", true, func(w *senderWorld) { w.restart("at any time") })
	if d := w.s.Deadline(); d.After(w.now) && d.Sub(w.now) < senderConfig.Grace { // the application comes back in time
		add("tick", true, func(w *senderWorld) {
			w.now = d
			w.s.Tick(w.now)
			w.settle()
		})
	}
	slices.SortStableFunc(list, func(a, b senderStep) int { return strings.Compare(a.name, b.name) })
	return list
}

// unreachable is the agent's news that it has no way to a receiver.
func (w *senderWorld) unreachable() {
	status := w.s.Status()
	id := status.Making
	if w.installed[id] == nil {
		id = status.Form.MCID
	}
	w.problems[id] = []string{senderAddr(1).String() + ": no route"}
	if w.mistake == "news between installation and formation is lost" && status.Making == id {
		return
	}
	w.s.News(id, w.problems[id], w.now)
	w.settle()
}

// key is the world's state.
func (w *senderWorld) key(faults int) [sha256.Size]byte {
	var pending []string
	for _, p := range w.pending {
		if p.run == w.run {
			pending = append(pending, p.name)
		}
	}
	slices.Sort(pending)
	return sha256.Sum256([]byte(group.Dump(faults, w.s, pending, w.now, w.disk, w.saving, w.members, w.installed, w.taken, w.problems, w.app, w.over)))
}

// An explorer goes through the states of a world.
type explorer struct {
	root    senderRoot
	mistake string
	seen    map[[sha256.Size]byte]bool
	runs    int
}

// mostFaults is how many faults a path has at most, other events than outcomes counted.
const mostFaults = 2

// run goes a path, by the numbers of its steps.
func (x *explorer) run(path []int) (w *senderWorld, names []string, faults int) {
	x.runs++
	w = newSenderWorld(1, x.mistake, &senderTally{})
	w.calm, w.steps, w.app.views = true, true, true
	w.s = group.NewSender(senderConfig)
	x.root.begin(w)
	for _, i := range path {
		s := w.next()[i]
		if names = append(names, s.name); s.fault {
			faults++
		}
		s.do(w)
	}
	return w, names, faults
}

// explore goes through all paths of so many steps. The error has a path to a state that must not be.
func (x *explorer) explore(depth int) error {
	x.seen = map[[sha256.Size]byte]bool{}
	level := [][]int{nil}
	for range depth {
		var next [][]int
		for _, path := range level {
			w, _, faults := x.run(path)
			for i, s := range w.next() {
				if s.fault && faults == mostFaults {
					continue
				}
				longer := append(slices.Clone(path), i)
				w, names, n := x.run(longer)
				if key := w.key(n); w.err == nil {
					if x.seen[key] {
						continue
					}
					x.seen[key] = true
				}
				next = append(next, longer)
				if w.steps = false; w.err == nil {
					w.settleAll()
				}
				if w.err != nil {
					return fmt.Errorf("%q: %w", names, w.err)
				}
			}
		}
		level = next
	}
	return nil
}
