package group

import (
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// An ending is the progress of a group's end: first the end is recorded, then the application and
// the receivers are told, and finally the record is deleted.
type ending struct {
	Ending
	restored bool     // the application was told before the restart, or is told if it asks
	version  uint64   // of the record that says that it has ended
	told     bool     // all others are being told
	calls    []uint64 // replies that wait until all are told, or for UndoTime
	until    time.Time
	replies  []ReplySender // as soon as it is durable
	deleted  uint64        // version that deletes the record
}

// fail ends a group that cannot go on.
func (s *Sender) fail(text string, cause mcrdmav1.Reason) {
	s.close(&ending{Ending: Ending{Reason: mcrdmav1.Detached_REASON_REMOVED, Text: "the group has failed: " + text, Failed: text, Cause: cause}})
}

func (s *Sender) close(e *ending) {
	if s.end != nil {
		return
	}
	if r := s.removal; r != nil && r.updating { // the switches may go on without them already, and operations be complete
		for _, x := range r.lost {
			s.depart(s.departureOf(x), s.lost[x.Addr].Label)
		}
	}
	s.end, s.removal, s.state = e, nil, Closing
	if s.try != nil {
		s.giveUp(failure.New(mcrdmav1.Reason_CLOSED, "the group has been closed meanwhile"))
	} else {
		s.do(CancelCalls{})
	}
}

// endedError is the error for calls after the end.
func (s *Sender) endedError() error {
	if s.end != nil {
		if f := s.end.Why(); f != nil {
			return f
		}
	}
	return failure.New(mcrdmav1.Reason_CLOSED, "the group has been closed")
}

// stepEnd continues the end.
func (s *Sender) stepEnd(now time.Time) {
	e := s.end
	if e == nil || s.try != nil {
		return
	}
	if !e.told {
		if e.version == 0 && s.form != nil && !e.restored {
			e.version = s.save()
		}
		if done, err := s.durable(e.version); !done && err == nil {
			return
		}
		s.ended(now)
	}
	if len(s.jobs) == 0 || !now.Before(e.until) {
		for _, call := range e.calls {
			s.reply(call, nil, nil)
		}
		e.calls = nil
	}
	if len(s.jobs) > 0 {
		return
	}
	if e.deleted == 0 {
		if s.journal.want == 0 && !e.restored { // there never was a record
			s.state = Closed
			return
		}
		e.deleted = s.journal.want + 1
		s.save()
	}
	if done, err := s.durable(e.deleted); done || err != nil {
		s.state = Closed
	}
}

// ended tells all that the group has ended.
func (s *Sender) ended(now time.Time) {
	e := s.end
	e.told, e.until = true, now.Add(UndoTime)
	if !e.restored {
		s.do(SenderEnded{e.Why()})
		if e.Failed != "" {
			s.tell(TellSender{Type: mcrdmav1.GroupChanged_TYPE_FAILED, Text: e.Failed, Reason: e.Cause})
		}
	}
	for _, r := range e.replies {
		s.do(r)
	}
	for _, r := range s.waiting {
		s.reply(r.call, nil, s.endedError())
	}
	s.waiting = nil
	if f := s.form; f != nil {
		s.drop(f.Addrs(), f.MCID, 0, e.Reason, e.Text, now)
		if f.switched() {
			s.remove(f.MCID, now)
		}
		s.settle(f.MCID)
	}
}
