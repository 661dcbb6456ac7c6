package group

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// Tick does the due work.
func (s *Sender) Tick(now time.Time) { s.step(now) }

// step continues all work as far as possible.
func (s *Sender) step(now time.Time) {
	if !s.app.resumed && !now.Before(s.app.by) {
		s.app.resumed = true
		s.close(&ending{Ending: Ending{Reason: mcrdmav1.Detached_REASON_SENDER_LOST, Text: "its application has not come back after the daemon's restart"}})
	}
	s.stepTry(now)
	s.stepRemoval(now)
	s.stepWaiting(now)
	s.stepAgent(now)
	s.stepEnd(now)
	s.stepJobs(now)
}

// Deadline is when Tick must be called if nothing else happens; zero: never.
func (s *Sender) Deadline() time.Time {
	var out time.Time
	by := func(t time.Time, holds bool) {
		if holds && !t.IsZero() && (out.IsZero() || t.Before(out)) {
			out = t
		}
	}
	by(s.app.by, !s.app.resumed)
	if t := s.try; t != nil {
		done, err := s.durable(t.version)
		by(t.until, done || err != nil)
	}
	if r := s.removal; r != nil {
		by(r.until, !r.acked)
		for _, at := range r.calls {
			by(at, true)
		}
	}
	if e := s.end; e != nil {
		by(e.until, len(e.calls) > 0)
	}
	by(s.agent.retryAt, s.state == Active)
	by(s.agent.drawAt, s.state == Active)
	by(s.agent.settled(), s.state == Active)
	for _, j := range s.jobs {
		by(j.at, !j.busy && !s.held(j))
	}
	return out
}

// Create forms the group: with all receivers, or not at all.
func (s *Sender) Create(call Call, from Endpoint, receivers []netip.Addr, views bool, now time.Time) {
	s.app.views = views
	r := &request{call: call.ID, by: call.By, from: from, candidates: receivers, joining: receivers, watch: stopwatch{begun: call.Begun, last: call.Begun}}
	r.watch.lap("check", now)
	s.begin(r)
	s.step(now)
}

// Reform re-forms the group.
func (s *Sender) Reform(call Call, again Again, now time.Time) {
	if s.end != nil {
		s.reply(call.ID, nil, s.endedError())
		return
	}
	s.waiting = append(s.waiting, &request{call: call.ID, by: call.By, again: &again, from: again.From, watch: stopwatch{begun: call.Begun, last: call.Begun}})
	s.step(now)
}

// Cancelled says that the caller no longer waits. Its call still gets an answer.
func (s *Sender) Cancelled(call uint64, err error, now time.Time) {
	if t := s.try; t != nil && t.call == call {
		t.cancelled = true
		s.giveUp(err)
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(r *request) bool {
		if r.call == call {
			s.reply(call, nil, err)
		}
		return r.call == call
	})
	s.step(now)
}

// Numbered is the outcome of TakeNumber.
func (s *Sender) Numbered(mcID, psn uint32, err error, now time.Time) {
	t := s.try
	if t == nil || t.f != nil {
		return
	}
	t.busy = false
	switch {
	case err != nil:
		s.giveUp(err)
	case t.err != nil:
		s.do(FreeNumber{mcID})
	default:
		s.last++
		s.view++
		t.f = &Formation{N: s.last, MCID: mcID, PSN: psn, Sender: t.from, View: s.view}
		t.phase, t.version = recording, s.save()
		if s.form == nil { // a group's number is that of one run of the daemon
			s.prepare(now)
		}
	}
	s.step(now)
}

// Prepared is the outcome of PrepareMember. unsent: the request cannot have arrived.
func (s *Sender) Prepared(mcID uint32, a netip.Addr, r Receiver, err error, unsent bool, now time.Time) {
	t := s.answered(mcID, a, preparing)
	if t == nil {
		return
	}
	if unsent {
		delete(t.reached, a)
	}
	if err == nil {
		t.ready[a] = r
	} else if t.fails(a, err); s.form == nil {
		s.giveUp(err)
	}
	s.step(now)
}

// Installed is the outcome of InstallFormation.
func (s *Sender) Installed(mcID uint32, in Installation, err error, now time.Time) {
	t := s.try
	if t == nil || t.f == nil || t.f.MCID != mcID || !t.busy {
		return
	}
	t.busy, t.left = false, in.Left
	if in.OldLeft {
		s.remove(s.form.MCID, now)
	}
	switch {
	case t.err != nil:
	case err != nil:
		s.giveUp(err)
	default:
		f := *t.f
		f.Path, f.Why, f.Relay, f.MaxPackets, f.Transient = in.Path, in.Why, in.Relay, in.MaxPackets, in.Transient
		t.watch.lap("install", now)
		t.f, t.phase = &f, committing
		if !f.switched() && t.left { // whether or not the agent has installed it
			t.left = false
			s.remove(mcID, now)
		}
		// After a crash in between, the daemon either finds no complete record and undoes the
		// formation, or finds the record, and the members report their state.
		t.version = s.save()
		for _, a := range f.Addrs() {
			t.calls[a] = committing
			s.do(CommitMember{a, t.f})
		}
	}
	s.step(now)
}

// Committed is the outcome of CommitMember. Without one of the receivers, the formation is
// another.
func (s *Sender) Committed(mcID uint32, a netip.Addr, err error, now time.Time) {
	t := s.answered(mcID, a, committing)
	if t == nil {
		return
	}
	if err != nil && t.err == nil {
		t.fails(a, err)
		if slow := s.slow(len(t.f.Receivers) - 1); slow != nil {
			err = slow
		}
		s.giveUp(err)
	}
	s.step(now)
}

// answered finds the try that an outcome belongs to; nil: the outcome is late.
func (s *Sender) answered(mcID uint32, a netip.Addr, p phase) *try {
	t := s.try
	if t == nil || t.f == nil || t.f.MCID != mcID {
		return nil
	}
	if call, ok := t.calls[a]; !ok || call != p {
		return nil
	}
	delete(t.calls, a)
	return t
}

// An Installation says how a formation's packets are copied.
type Installation struct {
	Path  mcrdmav1.Path
	Why   []string
	Relay *Relay
	// MaxPackets and Transient are as in Formation.
	MaxPackets uint32
	Transient  bool
	Left       bool // the switches may have the formation
	OldLeft    bool // the switches may have the one before
}

// News is the agent's event about a formation: its tree may have changed, and these are its
// problems. For a formation that is being made, it is kept.
func (s *Sender) News(mcID uint32, problems []string, now time.Time) {
	if f := s.form; f != nil && f.switched() && f.MCID == mcID {
		s.heard(problems, now)
	} else if t := s.try; t != nil && t.f != nil && t.f.MCID == mcID {
		t.news = &problems
	}
	s.step(now)
}

// Drawn is the outcome of DrawTree. No lines: it is not known.
func (s *Sender) Drawn(of *Formation, lines, why []string, now time.Time) {
	a := &s.agent
	again := a.again || s.form != of
	a.drawing, a.again = false, false
	if s.end != nil {
		return
	}
	if s.form == of && len(lines) == 0 {
		a.drawAt = now.Add(firstRetry)
	}
	if f := s.form; f == of && len(lines) > 0 && !slices.Equal(lines, f.Tree) {
		drawn := *f
		drawn.Tree, drawn.Why = lines, why
		s.form = &drawn
		t := TellSender{Type: mcrdmav1.GroupChanged_TYPE_TREE, Tree: lines}
		if len(f.Tree) > 0 {
			t.Type, t.Text = mcrdmav1.GroupChanged_TYPE_ROUTE, "the way to the receivers has changed"
		}
		s.tell(t)
	}
	if again {
		s.draw()
	}
	s.step(now)
}

// Missing says that the agent lacks a formation. While the formation is being changed, the agent may lack it
// for a moment, so it is asked again. sure: that was done.
func (s *Sender) Missing(mcID uint32, missing, sure bool, now time.Time) {
	a := &s.agent
	if sure {
		a.asking = false
	}
	if s.form != nil && s.form.MCID == mcID && s.form.switched() && missing {
		if sure && s.state == Active {
			s.breakUp(Receiver{}, fmt.Sprintf("switch %s does not have the group any longer", s.cfg.Switch))
		} else {
			a.missed = true
		}
	}
	s.step(now)
}

// Probed is the outcome of ProbeSwitch.
func (s *Sender) Probed(ready bool, now time.Time) {
	if ready && s.state == Active && s.form.Transient {
		s.breakUp(Receiver{}, fmt.Sprintf("switch %s is ready again", s.cfg.Switch))
	}
	s.step(now)
}

// Recorded is the outcome of SaveGroup.
func (s *Sender) Recorded(version uint64, err error, now time.Time) {
	j := &s.journal
	if j.writing != version {
		return
	}
	j.writing = 0
	if err != nil {
		j.failed, j.err = version, err
	} else {
		j.done, j.permitted = version, j.views
	}
	s.write()
	s.step(now)
}

// Lose asks for the removal of a receiver.
func (s *Sender) Lose(a netip.Addr, l Loss, now time.Time) {
	if _, ok := s.lost[a]; ok || s.form == nil || !s.form.Has(a) {
		return
	}
	l.At = now
	s.lost[a] = l
	s.step(now)
}

// Stuck says that nothing completes in a formation, and no receiver is to blame.
func (s *Sender) Stuck(formation uint32, text string, now time.Time) {
	if s.state == Active && s.form.N == formation {
		s.breakUp(Receiver{}, text)
		s.step(now)
	}
}

// ViewRecorded is the outcome of RecordMembers. A daemon that is away, for example during a
// restart, is asked again until it answers or is dead; meanwhile nothing completes without the lost
// receivers.
func (s *Sender) ViewRecorded(view uint32, a netip.Addr, err error, now time.Time) {
	r := s.removal
	if r == nil || r.next.View != view {
		return
	}
	if at, ok := r.calls[a]; !ok || !at.IsZero() {
		return
	}
	if away(err) {
		r.calls[a] = now.Add(recordAgain)
	} else {
		delete(r.calls, a)
		r.err = errors.Join(r.err, err)
	}
	s.step(now)
}

// AckView says that the application has acknowledged a view.
func (s *Sender) AckView(call uint64, view uint32, now time.Time) {
	switch r := s.removal; {
	case s.end != nil || s.form == nil:
		s.reply(call, nil, s.endedError())
		return
	case r != nil && view == r.next.View:
		r.acked = true
	case view > s.form.View && (r == nil || view > r.next.View):
		s.reply(call, nil, failure.New(mcrdmav1.Reason_STALE, "the group has no view %d yet", view))
		return
	}
	s.reply(call, nil, nil)
	s.step(now)
}

// Updated is the outcome of UpdateSwitch.
func (s *Sender) Updated(view uint32, err error, now time.Time) {
	r := s.removal
	if r == nil || r.next.View != view || !r.updating {
		return
	}
	if err != nil {
		s.cannot(err)
		s.step(now)
		return
	}
	why := s.lost[r.lost[0].Addr].Why
	s.form, s.state, s.removal = r.next, Active, nil
	gone := s.takenOut(r.lost)
	s.save()
	s.drop(gone, 0, 0, mcrdmav1.Detached_REASON_REMOVED, why, now)
	s.draw()
	s.step(now)
}

// Close ends the group. Ending.Failed is the reason for its application; "": it need not be told.
// It succeeds if the group has ended already.
func (s *Sender) Close(call uint64, e Ending, now time.Time) {
	if s.state == Closed {
		s.reply(call, nil, nil)
		return
	}
	s.close(&ending{Ending: e})
	s.end.calls = append(s.end.calls, call)
	if s.end.told && s.end.until.Before(now) {
		s.end.until = now.Add(UndoTime)
	}
	s.step(now)
}

// Cleaned is the outcome of CleanUp.
func (s *Sender) Cleaned(id uint64, err error, now time.Time) {
	i := slices.IndexFunc(s.jobs, func(j *job) bool { return j.ID == id && j.busy })
	if i < 0 {
		return
	}
	j := s.jobs[i]
	if j.busy = false; err == nil || now.After(j.until) {
		s.finish(j)
	} else {
		j.gone = failure.Is(err, mcrdmav1.Reason_UNREACHABLE)
		j.at = now.Add(j.wait)
		j.wait = min(2*j.wait, undoSlow)
	}
	s.step(now)
}

// Resume says that the application still has the group, after a restart.
func (s *Sender) Resume(call uint64, formation uint32, views bool, now time.Time) {
	switch {
	case s.end != nil || s.form == nil:
		s.reply(call, nil, s.endedError())
		return
	case formation > s.form.N:
		s.reply(call, nil, failure.New(mcrdmav1.Reason_STALE, "the group is at formation %d, and not %d", s.form.N, formation))
		return
	}
	s.app.views = views
	f := s.form
	if r := s.removal; r != nil {
		if r.told { // otherwise its number may be used again after a restart; TYPE_VIEW follows
			f = r.next
			if !s.app.resumed {
				r.until = now.Add(ViewTime)
			}
		}
		r.acked = r.acked || !views
	}
	s.app.resumed = true
	s.reply(call, f, nil)
	s.step(now)
}
