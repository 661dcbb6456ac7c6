package group

import (
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// RestoreSender restores a group from its record after a restart. It continues unfinished work, and
// undoes an incomplete formation.
func RestoreSender(cfg SenderConfig, r *SenderRecord, now time.Time) *Sender {
	s := NewSender(cfg)
	s.form, s.last, s.view, s.departures = r.Form, r.Last, r.Views, slices.Clone(r.Departures)
	s.journal.permitted = r.Views
	s.app = application{views: r.Acks, by: now.Add(cfg.Grace)}
	if f := r.Form; f != nil {
		s.state = Active
		s.last, s.view = max(s.last, f.N), max(s.view, f.View)
		s.agent.plan(f, now)
		if !f.switched() { // the agent may have installed it
			s.remove(f.MCID, now)
		}
	}
	if b := r.Forming; b != nil {
		s.last = max(s.last, b.N) // a state that was written before Last existed
		s.drop(b.Candidates, b.MCID, b.N, mcrdmav1.Detached_REASON_ABORTED, "the sender's daemon was restarted", now)
		s.remove(b.MCID, now)
	}
	switch {
	case r.Ended != nil || r.Form == nil:
		s.state, s.end = Closing, &ending{restored: true}
		if r.Ended != nil {
			s.end.Ending = *r.Ended
		}
	case r.Form.switched() && cfg.Switch == "":
		s.breakUp(Receiver{}, "by switches: no switch agent is configured any longer")
	case !s.enough(len(r.Form.Receivers)):
		s.breakUp(Receiver{}, s.few(len(r.Form.Receivers)))
	case r.Forming != nil:
		s.breakUp(Receiver{}, "the daemon was restarted while the group was formed anew")
	}
	if s.end == nil {
		s.departures = slices.DeleteFunc(s.departures, func(d Departure) bool {
			if r.Form.Has(d.Addr) { // taking out was begun
				s.lost[d.Addr] = Loss{Label: "resumed", Why: d.Why, At: d.At}
			}
			return r.Form.Has(d.Addr)
		})
		if s.state == Active && len(s.lost) > 0 {
			s.takeOut(r.Pending, now)
		}
	}
	s.step(now)
	return s
}

// Leftover is a group that only the switches know.
func Leftover(cfg SenderConfig, mcID uint32, now time.Time) *Sender {
	s := NewSender(cfg)
	s.state, s.end = Closing, &ending{told: true}
	s.remove(mcID, now)
	s.step(now)
	return s
}
