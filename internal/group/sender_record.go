package group

import (
	"net/netip"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// A SenderRecord is a group's durable record.
type SenderRecord struct {
	Form    *Formation `json:",omitempty"` // the one that is formed; nil: none yet
	Forming *Begun     `json:",omitempty"` // the one that is being formed
	// Last is the highest formation number so far. It is durable before a receiver of an earlier
	// formation learns the number, because such a receiver refuses a number that it knows.
	Last uint32 `json:",omitempty"`
	// Departures are the removed receivers, and those of Form that are being removed.
	Departures []Departure `json:",omitempty"`
	// Views up to this number may have been announced to others.
	Views uint32 `json:",omitempty"`
	// Pending is the view after the receivers of Form that are being removed.
	Pending uint32  `json:",omitempty"`
	Acks    bool    `json:",omitempty"` // the application calls AckView
	Ended   *Ending `json:",omitempty"` // the group has ended, and is being undone elsewhere
}

// A Begun is an incomplete formation that must be undone.
type Begun struct {
	N          uint32
	MCID       uint32
	Candidates []netip.Addr
}

// An Ending says how a group has ended.
type Ending struct {
	Reason mcrdmav1.Detached_Reason // for the receivers
	Text   string
	// Failed is the reason for the application; "": it has ended the group, or has ended itself.
	Failed string          `json:",omitempty"`
	Cause  mcrdmav1.Reason `json:",omitempty"` // why, for the application
}

// Why is the error for an application that asks for the ended group; nil: it need not know.
func (e *Ending) Why() *failure.Error {
	if e.Cause == mcrdmav1.Reason_REASON_UNSPECIFIED {
		return nil
	}
	return failure.New(e.Cause, "%s", e.Failed)
}

// reserve is the number of further views that may be announced before the next record is durable.
const reserve = 16

// journal writes one record at a time: each write has the state at its start.
type journal struct {
	want, writing, done uint64
	failed              uint64 // versions up to this one that are not done could not be written
	err                 error
	views               uint32 // that the record that is being written permits
	permitted           uint32 // that the durable one permits
}

// save records the current state, and returns the version to wait for.
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

// durable reports whether a version is durable, or why it will not be.
func (s *Sender) durable(version uint64) (bool, error) {
	switch j := &s.journal; {
	case j.done >= version:
		return true, nil
	case j.failed >= version:
		return false, j.err
	}
	return false, nil
}

// record returns the current state; nil: there is nothing to store.
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
