package group

import (
	"net/netip"

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
