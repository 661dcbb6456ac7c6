package group

import (
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// A SenderRecord is what must be known of a group after a restart.
type SenderRecord struct {
	Form    *Formation `json:",omitempty"` // the one that is formed; nil: none yet
	Forming *Begun     `json:",omitempty"` // the one that is being formed
	// Last is the highest number that a formation was given. It is durable before a
	// receiver of an earlier formation learns the number: such a receiver refuses it the
	// second time.
	Last uint32 `json:",omitempty"`
	// Departures are receivers that were taken out, and those of Form that are about to be.
	Departures []Departure `json:",omitempty"`
	// Views up to this number may have been told to others.
	Views uint32 `json:",omitempty"`
	// Pending is the view of those who stay when the receivers of Form that are about to be
	// taken out are out.
	Pending uint32  `json:",omitempty"`
	Acks    bool    `json:",omitempty"` // the application calls AckView
	Ended   *Ending `json:",omitempty"` // the group has ended, and is being undone elsewhere
}

// A Begun is what must be undone of a formation that never was complete.
type Begun struct {
	N          uint32
	MCID       uint32
	Candidates []netip.Addr
}

// An Ending is how a group has ended.
type Ending struct {
	Reason mcrdmav1.Detached_Reason // for the receivers
	Text   string
	// Failed is what the application is told; "": it has ended the group, or is gone.
	Failed string          `json:",omitempty"`
	Cause  mcrdmav1.Reason `json:",omitempty"` // why, for the application
}

// Why is what an application is told that asks for a group which has ended; nil: it need not
// know.
func (e *Ending) Why() *failure.Error {
	if e.Cause == mcrdmav1.Reason_REASON_UNSPECIFIED {
		return nil
	}
	return failure.New(e.Cause, "%s", e.Failed)
}

// reserve is how many views a record permits to be told before the next record.
const reserve = 16

// journal has one record written at a time: each write has what was wanted when it began.
type journal struct {
	want, writing, done uint64
	failed              uint64 // versions up to this one that are not done could not be written
	err                 error
	views               uint32 // that the record that is being written permits
	permitted           uint32 // that the durable one permits
}

// save has the present state recorded, and returns the version to wait for.
func (s *Sender) save() uint64 {
	s.journal.want++
	s.write()
	return s.journal.want
}

func (s *Sender) write() {
	if j := &s.journal; j.writing == 0 && j.want > max(j.done, j.failed) {
		j.writing = j.want
		r := s.record()
		if r != nil {
			j.views = r.Views
		}
		s.do(SaveGroup{j.want, r})
	}
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

// durable says whether a version is durable, or why it is not going to be.
func (s *Sender) durable(version uint64) (bool, error) {
	switch j := &s.journal; {
	case j.done >= version:
		return true, nil
	case j.failed >= version:
		return false, j.err
	}
	return false, nil
}

// record is the present state; nil: there is nothing to be known.
func (s *Sender) record() *SenderRecord {
	if s.end != nil && s.end.deleted != 0 {
		return nil
	}
	r := &SenderRecord{Form: s.form, Last: s.last, Departures: s.allDepartures(), Views: s.view + reserve, Acks: s.app.views}
	if t := s.try; t != nil && t.f != nil {
		if t.phase == committing {
			r.Form = t.f
		} else {
			r.Forming = &Begun{t.f.N, t.f.MCID, t.candidates}
		}
	}
	if s.removal != nil {
		r.Pending = s.removal.next.View
	}
	if s.end != nil {
		r.Ended = &s.end.Ending
	}
	return r
}

// RestoreSender makes a group of its record, after a restart. It goes on with what was being
// done, and undoes a formation that was not complete.
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
		s.end = &ending{Ending: Ending{}, restored: true}
		if r.Ended != nil {
			s.end.Ending = *r.Ended
		}
	case r.Form.switched() && cfg.Switch == "":
		s.breakUp(netip.Addr{}, "by switches: no switch agent is configured any longer")
	case !s.enough(len(r.Form.Receivers)):
		s.breakUp(netip.Addr{}, s.few(len(r.Form.Receivers)))
	case r.Forming != nil:
		s.breakUp(netip.Addr{}, "the daemon was restarted while the group was formed anew")
	}
	if s.end == nil {
		s.departures = slices.DeleteFunc(s.departures, func(d Departure) bool {
			if r.Form.Has(d.Addr) { // taking out was begun
				s.lost[d.Addr] = Loss{Label: "resumed", Why: d.Why}
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
