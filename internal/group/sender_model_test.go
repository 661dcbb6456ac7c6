package group_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/group"
)

func (w *senderWorld) told(a group.TellSender) {
	p := &w.app
	if p.told && !w.diskFailed {
		w.fail("told %v after the end", a.Type)
	}
	switch a.Type {
	case mcrdmav1.GroupChanged_TYPE_CREATED:
		if p.created {
			w.fail("created twice")
		}
		p.created = true
	case mcrdmav1.GroupChanged_TYPE_VIEW:
		w.view(a.View)
		if !w.chance(10) {
			w.ack(a.View.View)
		}
		if w.mistake == "an update before the application has acknowledged the view" {
			w.s.AckView(0, a.View.View, w.now)
		}
	case mcrdmav1.GroupChanged_TYPE_REMOVED:
		w.tally.removed++
		if p.removed[a.Member.Addr] {
			w.fail("%v is removed twice", a.Member.Addr)
		}
		p.removed[a.Member.Addr] = true
		if w.mistake == "a removal is told twice" {
			w.mistake = ""
			w.told(a)
		}
	case mcrdmav1.GroupChanged_TYPE_REFORM:
		w.tally.broken++
		p.broken = true
	case mcrdmav1.GroupChanged_TYPE_FAILED:
		p.ended, p.told = true, true
		if !w.diskFails && (w.disk == nil || w.disk.Ended == nil) {
			w.fail("the application is told that the group has failed, and that is not durable")
		}
	}
}

// ack has the application acknowledge a view.
func (w *senderWorld) ack(view uint32) {
	w.doing = fmt.Sprint("ack ", view)
	w.later(func() {
		w.app.acked = max(w.app.acked, view)
		w.call("AckView", func(s *group.Sender, call group.Call) { s.AckView(call.ID, view, w.now) })
	})
}

func (w *senderWorld) call(what string, f func(*group.Sender, group.Call)) uint64 {
	if w.s == nil {
		return 0
	}
	w.app.lastID++
	id := w.app.lastID
	w.app.calls[id] = what
	w.trace("call %d: %s", id, what)
	f(w.s, group.Call{ID: id, Begun: w.now})
	w.settle()
	return id
}

func (w *senderWorld) replied(a group.ReplySender) {
	what, ok := w.app.calls[a.Call]
	if !ok {
		w.fail("call %d is answered twice", a.Call)
	}
	if w.mistake == "a call has no answer" && what == "Reform" {
		return
	}
	delete(w.app.calls, a.Call)
	p := &w.app
	if f := a.Formation; f != nil {
		w.view(f)
		p.form = f
		if what == "Reform" {
			p.broken = false
		}
		if what == "Resume" && f.View > p.acked {
			w.ack(f.View)
		} else {
			p.acked = max(p.acked, f.View)
		}
	}
	p.told = p.told || what == "Close"
	if what == "Create" && a.Err != nil {
		p.told = true
		if p.created {
			w.fail("created, and the answer is %v", a.Err)
		}
		p.ended = true
	}
}

// restart ends the daemon, and starts it again with what is durable.
func (w *senderWorld) restart(why string) {
	w.trace("restart %s", why)
	w.tally.restarts++
	w.run++
	w.saving = false
	w.diskFails = false
	clear(w.app.calls)
	clear(w.app.removed) // it may be told again of what was not durable
	w.s = nil
	// The new run sweeps what the switch has and the record does not; leases end the memberships.
	known := map[uint32]bool{}
	if r := w.disk; r != nil {
		if r.Form != nil {
			known[r.Form.MCID] = true
		}
		if r.Forming != nil {
			known[r.Forming.MCID] = true
		}
	}
	for id := range w.installed {
		if !known[id] {
			delete(w.installed, id)
		}
	}
	for id, run := range w.taken {
		if run >= 0 {
			w.taken[id] = -1
		}
		if known[id] {
			w.taken[id] = w.run
		}
	}
	w.lease()
	if w.disk == nil {
		w.app.ended = true
		return
	}
	w.s = group.RestoreSender(w.config(), cloneRecord(w.disk), w.now)
	if f := w.s.Status().Form; f != nil && (w.app.told || w.over) && !w.diskFailed {
		w.fail("a group that has ended is there again")
	}
	if w.s.Status().Form == nil {
		w.app.ended = true
	}
	w.app.gone = w.app.gone || w.app.ended // it does not come back for the group
	w.settle()
	for _, id := range slices.Sorted(maps.Keys(w.installed)) { // it follows the agent again
		w.doing = fmt.Sprint("follow ", id)
		w.later(func() {
			if w.s != nil {
				w.s.News(id, w.problems[id], w.now)
				w.settle()
			}
		})
	}
	w.doing = "renew"
	w.later(func() { // and renews its leases there
		if w.s == nil || w.s.Status().Form == nil {
			return
		}
		if id := w.s.Status().Form.MCID; w.installed[id] == nil {
			w.s.Missing(id, true, false, w.now)
			w.settle()
		}
	})
	if w.s != nil && !w.app.ended && !w.app.gone {
		w.doing = "resume"
		w.later(func() {
			if w.s != nil && !w.app.ended {
				w.call("Resume", func(s *group.Sender, call group.Call) { s.Resume(call.ID, 0, w.app.views, w.now) })
			}
		})
	}
}

// leases lets leases end, if the daemon was restarted: it does not know what it had to undo elsewhere.
func (w *senderWorld) leases() {
	if w.run > 0 {
		w.lease()
	}
}

// lease ends memberships that the sender's daemon does not know any longer.
func (w *senderWorld) lease() {
	for a, m := range w.members {
		for n := range m.forms {
			r := w.disk
			if r == nil || (r.Form == nil || r.Form.N != n || !r.Form.Has(a)) && (r.Forming == nil || r.Forming.N != n) {
				if r == nil || r.Form == nil || n < r.Form.N || !r.Form.Has(a) {
					delete(m.forms, n)
				}
			}
		}
	}
}

// advance goes on to the next outcome or deadline, at most until end.
func (w *senderWorld) advance(end time.Time) {
	i := -1
	for k, p := range w.pending {
		if i < 0 || p.at.Before(w.pending[i].at) {
			i = k
		}
	}
	at := end
	if w.s != nil {
		if d := w.s.Deadline(); !d.IsZero() && d.Before(at) {
			at = d
		}
	}
	if i >= 0 && !w.pending[i].at.After(at) {
		p := w.pending[i]
		w.pending = slices.Delete(w.pending, i, i+1)
		if p.at.After(w.now) {
			w.now = p.at
		}
		if p.run == w.run {
			p.f()
		}
		return
	}
	if at.After(w.now) {
		w.now = at
	}
	if w.s != nil {
		w.s.Tick(w.now)
		w.settle()
	}
}

func (w *senderWorld) pass(d time.Duration) {
	for end, n := w.now.Add(d), 0; w.now.Before(end) && w.err == nil; n++ {
		if n > 100_000 {
			w.fail("it does not come to rest")
		}
		w.advance(end)
	}
}
