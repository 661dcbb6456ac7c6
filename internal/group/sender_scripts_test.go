package group

import (
	"errors"
	"fmt"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// senderScripts are what a group does, told in testdata/sender.
var senderScripts = map[string]func() *script{
	"create": func() *script {
		x := scripted(nil)
		x.event("call 1: create", func(s *Sender) {
			s.Create(Call{ID: 1, Begun: x.now.Add(-3 * time.Millisecond)}, Endpoint{QPN: 5, Sent: 6}, ats(1, 2), false, x.now)
		})
		x.log = append(x.log, fmt.Sprint("phases ", x.s.form.Phases))
		x.reform(2)
		x.log = append(x.log, fmt.Sprint("phases ", x.s.form.Phases))
		x.event("call 3: reform within a second", func(s *Sender) {
			s.Reform(Call{ID: 3, Begun: x.now, By: x.now.Add(time.Second)}, Again{Formation: 2}, x.now)
		})
		x.closes(4)
		x.event("call 5: close again", func(s *Sender) { s.Close(5, Ending{}, x.now) })
		return x
	},
	"create, and a receiver refuses": func() *script {
		x := scripted(nil)
		x.prepares(errDenied, 2)
		x.event("call 1: create", func(s *Sender) { s.Create(Call{ID: 1, Begun: x.now}, Endpoint{QPN: 5}, ats(1, 2, 3), false, x.now) })
		return x
	},
	"create, and there is no number": func() *script {
		x := scripted(nil)
		on(x, func(TakeNumber) bool { x.s.Numbered(0, 0, errors.New("no number"), x.now); return true })
		x.event("call 1: create", func(s *Sender) { s.Create(Call{ID: 1, Begun: x.now}, Endpoint{QPN: 5}, ats(1, 2), false, x.now) })
		return x
	},
	"create, and it is cancelled before there is a number": func() *script {
		x := scripted(nil)
		ignored[TakeNumber](x)
		x.event("call 1: create", func(s *Sender) { s.Create(Call{ID: 1, Begun: x.now}, Endpoint{QPN: 5}, ats(1, 2), false, x.now) })
		x.event("call 1 is cancelled", func(s *Sender) { s.Cancelled(1, errors.New("cancelled"), x.now) })
		x.event("the number is there", func(s *Sender) { s.Numbered(9, 7, nil, x.now) })
		return x
	},
	"reform with those that answer": func() *script {
		x := active(nil)
		x.prepares(errUnsent, 5)
		x.prepares(errDenied, 3, 4)
		x.reform(2, 4, 5, 6)
		return x
	},
	"reform, and a receiver does not commit": func() *script {
		x := active(nil)
		x.commits(errDenied, 3)
		x.reform(2, 4)
		return x
	},
	"reform, and commits are late": func() *script {
		x := active(func(c *SenderConfig) { c.MinSize = 4 })
		late := func(calls ...uint64) {
			x.commits(errLate, 2, 3)
			for _, call := range calls {
				x.reform(call)
			}
			x.but = nil
		}
		late(2, 3)
		x.reform(4)
		late(5, 6, 7, 8) // the last in vain
		return x
	},
	"reform, and a daemon is away that is needed": func() *script {
		x := active(func(c *SenderConfig) { c.MinSize = 4 })
		x.commits(errNoAnswer, 3)
		x.reform(2)
		return x
	},
	"reform, and the switches refuse": func() *script {
		x := active(nil)
		x.installs(Installation{OldLeft: true, Left: true}, failure.New(mcrdmav1.Reason_NO_SWITCH, "no room"))
		x.reform(2)
		return x
	},
	"reform, and hosts relay": func() *script {
		x := active(nil)
		x.installs(Installation{Path: mcrdmav1.Path_PATH_RELAY, Left: true, Transient: true}, nil)
		x.commits(errors.New("no"), 3)
		x.reform(2)
		x.lose(2)
		x.lose(1)
		return x
	},
	"reform with too few": func() *script {
		x := active(func(c *SenderConfig) { c.MinSize = 3 })
		x.prepares(errDenied, 2, 3)
		x.event("call 2 waits for call 3", func(s *Sender) {
			s.Reform(Call{ID: 2, Begun: x.now}, Again{Formation: 1}, x.now)
			s.Reform(Call{ID: 3, Begun: x.now}, Again{Formation: 1}, x.now)
		})
		x.event("call 4: reform", func(s *Sender) { s.Reform(Call{ID: 4}, Again{Formation: 1}, x.now) })
		return x
	},
	"reform with too few, and it waits": func() *script {
		x := active(func(c *SenderConfig) { c.MinSize, c.Waits = 3, true })
		x.prepares(errDenied, 2, 3)
		x.reform(2)
		return x
	},
	"reform after a copy of the state was restored": func() *script {
		x := active(nil)
		ahead := failure.New(mcrdmav1.Reason_STALE, "formation 7 is there")
		ahead.Formation = 7
		on(x, func(a PrepareMember) bool {
			fails := a.Formation.N < 8
			if fails {
				x.s.Prepared(a.Formation.MCID, a.Addr, Receiver{}, ahead, false, x.now)
			}
			return fails
		})
		x.reform(2)
		return x
	},
	"reform, and a receiver is lost that answers": func() *script {
		x := active(nil)
		on(x, func(InstallFormation) bool {
			x.s.Lose(at(3), Loss{Label: "dead", Why: "it is silent"}, x.now)
			return false
		})
		x.reform(2)
		return x
	},
	"reform without one that is lost": func() *script {
		x := active(nil)
		ignored[UpdateSwitch](x)
		x.lose(3)
		x.reform(2)
		x.event("the switches have done it", func(s *Sender) { s.Updated(2, nil, x.now) })
		return x
	},
	"reform in place of a removal": func() *script {
		x := active(nil)
		ignored[RecordMembers](x)
		x.lose(3)
		x.prepares(errLate, 2)
		x.reform(2)
		x.reform(3)
		return x
	},
	"reform with one that is dropped": func() *script {
		x := active(nil)
		ignored[CleanUp](x)
		x.lose(3)
		x.reform(2, 3)
		x.event("the drop has failed", func(s *Sender) { s.Cleaned(s.jobs[0].ID, errNoAnswer, x.now) })
		x.lose(3)
		x.event("the drop has failed", func(s *Sender) { s.Cleaned(s.jobs[0].ID, errNoAnswer, x.now) })
		x.reform(3, 3)
		x.event("it has failed again", func(s *Sender) { s.Cleaned(s.jobs[0].ID, errNoAnswer, x.now) })
		return x
	},
	"reform is cancelled": func() *script {
		x := active(nil)
		ignored[InstallFormation](x)
		x.reform(2)
		x.event("call 3 waits", func(s *Sender) { s.Reform(Call{ID: 3}, Again{Formation: 1}, x.now) })
		x.event("call 3 is cancelled", func(s *Sender) { s.Cancelled(3, errors.New("cancelled"), x.now) })
		x.event("call 2 is cancelled", func(s *Sender) { s.Cancelled(2, errors.New("cancelled"), x.now) })
		x.event("the switches have it", func(s *Sender) {
			s.Installed(10, Installation{Path: mcrdmav1.Path_PATH_SWITCH, Left: true}, nil, x.now)
		})
		return x
	},
	"reform, and it cannot be undone in time": func() *script {
		x := active(nil)
		x.prepares(errLate, 2)
		ignored[CleanUp](x)
		x.reform(2, 4)
		x.after(2*time.Second - 1)
		x.after(1)
		for range 4 {
			x.event("a drop is done", func(s *Sender) { s.Cleaned(s.jobs[0].ID, nil, x.now) })
		}
		return x
	},
	"reform, and the disk is full": func() *script {
		x := active(nil)
		x.saves(func(r *SenderRecord) bool { return r.Last == 2 })
		x.reform(2)
		x.but = nil
		x.saves(func(r *SenderRecord) bool { return r.Form.N == 3 })
		x.reform(3)
		x.but = nil
		x.reform(4)
		return x
	},
	"reform without an agent": func() *script {
		x := active(nil)
		x.s.cfg.Switch = ""
		x.installs(Installation{Path: mcrdmav1.Path_PATH_RELAY}, nil)
		x.reform(2)
		x.closes(3)
		return x
	},
	"the agent has news while it forms": func() *script {
		x := active(nil)
		on(x, func(a CommitMember) bool {
			x.s.News(10, []string{"10.0.0.3: no route"}, x.now)
			return false
		})
		x.event("news", func(s *Sender) { s.News(9, []string{"10.0.0.1: no route"}, x.now) })
		x.reform(2)
		x.after(time.Second)
		return x
	},
	"a receiver is taken out": func() *script {
		x := active(nil)
		x.lose(3)
		x.lose(3)
		x.lose(9)
		x.lose(2)
		x.lose(1)
		return x
	},
	"a receiver is taken out, and another meanwhile": func() *script {
		x := active(nil)
		ignored[RecordMembers](x)
		x.lose(3)
		x.event(".3 is dead for another reason", func(s *Sender) { s.Lose(at(3), Loss{Label: "other", Why: "other"}, x.now) })
		x.lose(2)
		x.event("the first view is recorded", func(s *Sender) { s.ViewRecorded(2, at(1), nil, x.now) })
		x.event("the second", func(s *Sender) { s.ViewRecorded(3, at(1), nil, x.now) })
		return x
	},
	"a receiver cannot be taken out of the switches": func() *script {
		x := active(nil)
		ignored[UpdateSwitch](x)
		x.lose(3)
		x.event("the switches do not answer", func(s *Sender) { s.Updated(2, errNoAnswer, x.now) })
		x.reform(2)
		return x
	},
	"a view cannot be recorded": func() *script {
		x := active(nil)
		on(x, func(a RecordMembers) bool { x.s.ViewRecorded(a.Next.View, a.Addr, errDenied, x.now); return true })
		x.lose(3)
		return x
	},
	"a removal cannot be made durable": func() *script {
		x := active(nil)
		x.saves(func(r *SenderRecord) bool { return true })
		x.lose(3)
		return x
	},
	"too few are left, and it waits": func() *script {
		x := active(func(c *SenderConfig) { c.Waits, c.MinSize = true, 3 })
		x.lose(3)
		x.lose(2)
		x.lose(1)
		x.reform(2, 4, 5)
		return x
	},
	"a broken group loses receivers, and waits": func() *script {
		x := active(func(c *SenderConfig) { c.Waits, c.MinSize = true, 3 })
		x.event("nothing completes", func(s *Sender) { s.Stuck(1, "nothing completes", x.now) })
		x.lose(3)
		x.lose(2)
		x.lose(1)
		return x
	},
	"a view is acknowledged": func() *script {
		x := active(nil)
		x.s.app.views = true
		x.event("call 2: acknowledge view 1", func(s *Sender) { s.AckView(2, 1, x.now) })
		x.event("call 3: acknowledge view 2", func(s *Sender) { s.AckView(3, 2, x.now) })
		x.lose(3)
		x.event("call 4: acknowledge view 3", func(s *Sender) { s.AckView(4, 3, x.now) })
		x.event("call 5: acknowledge view 2", func(s *Sender) { s.AckView(5, 2, x.now) })
		x.closes(6)
		x.event("call 7: acknowledge view 2", func(s *Sender) { s.AckView(7, 2, x.now) })
		x.event("call 8: resume", func(s *Sender) { s.Resume(8, 1, true, x.now) })
		return x
	},
	"restart while a receiver is taken out": func() *script {
		r := recorded(1, 2, 3)
		r.Departures = []Departure{{Addr: at(9), Why: "it has left"}, {Addr: at(3), Why: "it is silent"}}
		r.Pending, r.Views, r.Acks = 2, 2, true
		x := restored(nil, r)
		x.restart()
		x.event("call 2: resume formation 2", func(s *Sender) { s.Resume(2, 2, true, x.now) })
		x.after(time.Second)
		x.event("call 3: resume", func(s *Sender) { s.Resume(3, 1, true, x.now) })
		x.after(time.Second)
		x.event("call 4: resume again", func(s *Sender) { s.Resume(4, 1, true, x.now) })
		x.event("call 5: acknowledge view 2", func(s *Sender) { s.AckView(5, 2, x.now) })
		x.lose(2)
		return x
	},
	"restart, and the application counts no views": func() *script {
		r := recorded(1, 2, 3)
		r.Departures = []Departure{{Addr: at(3), Why: "it is silent"}}
		r.Pending, r.Views, r.Acks = 2, 2, true
		x := restored(nil, r)
		x.restart()
		x.event("call 2: resume", func(s *Sender) { s.Resume(2, 1, false, x.now) })
		x.after(time.Minute)
		return x
	},
	"restart, and the application does not come back": func() *script {
		x := restored(nil, recorded(1, 2))
		x.restart()
		x.after(time.Minute - 1)
		x.after(1)
		return x
	},
	"restart, and a removal is not durable yet": func() *script {
		x := restored(nil, recorded(1, 2, 3))
		x.restart()
		ignored[SaveGroup](x)
		x.lose(3)
		x.event("call 2: resume", func(s *Sender) { s.Resume(2, 1, false, x.now) })
		x.event("it is durable", func(s *Sender) { s.Recorded(1, nil, x.now) })
		return x
	},
	"restart while a receiver is taken out, and the disk is slow": func() *script {
		r := recorded(1, 2, 3)
		r.Departures = []Departure{{Addr: at(3), Why: "it is silent"}}
		r.Pending, r.Views, r.Acks = 2, 2, true // of which others may know
		x := restored(nil, r)
		ignored[SaveGroup](x)
		x.restart()
		return x
	},
	"restart with a record of a release before": func() *script {
		r := recorded(1, 2)
		r.Form.N, r.Form.View = 4, 30
		r.Forming = &Begun{6, 12, ats(1, 2, 3)}
		r.Departures = []Departure{{Addr: at(2), Why: "it is silent"}}
		x := restored(nil, r)
		x.restart()
		x.event("call 2: resume", func(s *Sender) { s.Resume(2, 4, false, x.now) })
		x.reform(3)
		return x
	},
	"restart while hosts relay": func() *script {
		r := recorded(1, 2)
		r.Form.Path, r.Form.Transient = mcrdmav1.Path_PATH_RELAY, true
		x := restored(nil, r)
		x.restart()
		x.after(10 * time.Second)
		x.event("the switch is ready", func(s *Sender) { s.Probed(true, x.now) })
		x.closes(2)
		return x
	},
	"restart while hosts relay, and the number is free": func() *script {
		r := recorded(1, 2)
		r.Form.Path = mcrdmav1.Path_PATH_RELAY
		x := restored(nil, r)
		x.restart()
		x.reform(2)
		x.closes(3)
		return x
	},
	"restart after the end": func() *script {
		r := recorded(1, 2)
		r.Ended = &Ending{Reason: mcrdmav1.Detached_REASON_REMOVED, Text: "the group has failed: so it is", Failed: "so it is", Cause: mcrdmav1.Reason_MIN_SIZE}
		x := restored(nil, r)
		ignored[CleanUp](x)
		x.restart()
		x.event("call 2: resume", func(s *Sender) { s.Resume(2, 1, false, x.now) })
		x.closes(3)
		x.after(2 * time.Second)
		x.after(time.Minute)
		return x
	},
	"restart before the first formation": func() *script {
		x := restored(nil, SenderRecord{Last: 1, Views: 17, Forming: &Begun{1, 9, ats(1, 2)}})
		x.restart()
		return x
	},
	"what the switch has and no record": func() *script {
		x := scripted(nil)
		x.s = Leftover(x.s.cfg, 9, x.now)
		x.restart()
		return x
	},
	"reform, and a drop is under way when it is tried again": func() *script {
		x := active(nil)
		x.commits(errDenied, 3)
		on(x, func(a CleanUp) bool { return a.Job.Addr == at(4) })
		x.reform(2, 4)
		x.after(2 * time.Second)
		x.event("the drop has failed", func(s *Sender) { s.Cleaned(s.jobs[0].ID, errNoAnswer, x.now) })
		return x
	},
	"reform, and the switches keep what was before": func() *script {
		x := active(nil)
		on(x, func(a CleanUp) bool { return a.Job.MCID == 9 })
		x.installs(Installation{OldLeft: true}, failure.New(mcrdmav1.Reason_NO_SWITCH, "no room"))
		x.reform(2)
		x.event("they have taken it out", func(s *Sender) { s.Cleaned(s.jobs[0].ID, nil, x.now) })
		return x
	},
	"reform is given up, and the disk is slow": func() *script {
		x := active(nil)
		on(x, func(a SaveGroup) bool { return a.Record.Forming != nil && a.Version > 3 })
		x.commits(errDenied, 3)
		x.reform(2)
		x.event("it is durable", func(s *Sender) { s.Recorded(s.journal.writing, nil, x.now) })
		return x
	},
	"reform twice": func() *script {
		x := active(nil)
		x.event("calls 2 and 3: reform", func(s *Sender) {
			s.Reform(Call{ID: 2, Begun: x.now}, Again{Formation: 1}, x.now)
			s.Reform(Call{ID: 3, Begun: x.now}, Again{Formation: 1}, x.now)
		})
		return x
	},
	"reform waits for a removal that fails": func() *script {
		x := active(nil)
		ignored[UpdateSwitch](x)
		x.lose(3)
		x.reform(2)
		x.event("the switches do not answer", func(s *Sender) { s.Updated(2, errNoAnswer, x.now) })
		return x
	},
	"create, and the disk is full": func() *script {
		x := scripted(nil)
		x.saves(func(r *SenderRecord) bool { return true })
		x.event("call 1: create", func(s *Sender) { s.Create(Call{ID: 1, Begun: x.now}, Endpoint{QPN: 5}, ats(1, 2), false, x.now) })
		return x
	},
	"a view is told before it is durable": func() *script {
		x := active(nil)
		ignored[SaveGroup](x)
		x.lose(3)
		x.event("it is durable", func(s *Sender) { s.Recorded(s.journal.writing, nil, x.now) })
		return x
	},
	"a view is acknowledged, and a daemon is away": func() *script {
		x := active(nil)
		x.s.app.views = true
		ignored[RecordMembers](x)
		x.lose(3)
		x.event("call 2: acknowledge view 2", func(s *Sender) { s.AckView(2, 2, x.now) })
		x.after(time.Minute)
		for i := byte(1); i <= 2; i++ {
			x.event("view 2 is recorded at ."+fmt.Sprint(i), func(s *Sender) { s.ViewRecorded(2, at(i), nil, x.now) })
		}
		return x
	},
	"close, and the disk is slow": func() *script {
		x := active(nil)
		ignored[SaveGroup](x)
		x.closes(2)
		for range 2 {
			x.event("it is durable", func(s *Sender) { s.Recorded(s.journal.writing, nil, x.now) })
		}
		return x
	},
	"close, and the disk is full": func() *script {
		x := active(nil)
		x.saves(func(r *SenderRecord) bool { return true })
		x.closes(2)
		return x
	},
	"what a switch had that is not used any longer": func() *script {
		x := scripted(func(c *SenderConfig) { c.Switch = "" })
		x.s = Leftover(x.s.cfg, 9, x.now)
		x.restart()
		return x
	},
	"close while a formation is given up": func() *script {
		x := active(nil)
		ignored[InstallFormation](x)
		x.reform(2)
		x.event("call 2 is cancelled", func(s *Sender) { s.Cancelled(2, errors.New("cancelled"), x.now) })
		x.closes(3)
		x.event("the switches do not have it", func(s *Sender) { s.Installed(10, Installation{}, errNoAnswer, x.now) })
		return x
	},
	"close while it forms": func() *script {
		x := active(nil)
		ignored[InstallFormation](x)
		x.reform(2)
		x.closes(3)
		x.event("the switches have it", func(s *Sender) {
			s.Installed(10, Installation{Path: mcrdmav1.Path_PATH_SWITCH, Left: true}, nil, x.now)
		})
		return x
	},
}
