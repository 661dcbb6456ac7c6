package group

import (
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// An ending is how far the end of a group has come: first the record says that it has ended,
// then its application and the others hear of it, and at last the record is deleted.
type ending struct {
	Ending
	restored bool     // the application was told before the restart, or is told if it asks
	version  uint64   // of the record that says that it has ended
	told     bool     // all others are being told
	calls    []uint64 // that wait until all are told, or UndoTime is up
	until    time.Time
	replies  []ReplySender // as soon as it is durable
	deleted  uint64        // version that deletes the record
}

// Close ends the group. Ending.Failed is what its application learns; "": it knows. It succeeds if the group has ended already.
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

// fail ends the group because it cannot go on.
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

// endedError is what calls get that come too late.
func (s *Sender) endedError() error {
	if s.end != nil {
		if f := s.end.Why(); f != nil {
			return f
		}
	}
	return failure.New(mcrdmav1.Reason_CLOSED, "the group has been closed")
}

// stepEnd goes on with the end.
func (s *Sender) stepEnd(now time.Time) {
	e := s.end
	if e == nil || s.try != nil || s.state == Closed {
		return
	}
	s.state = Closing
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

// A Job is something that must be undone elsewhere.
type Job struct {
	ID        uint64
	Addr      netip.Addr // of the receiver whose membership ends; none: it is at the switch
	MCID      uint32     // that is freed when all its jobs are done; 0: none
	Formation uint32     // 0: all
	Reason    mcrdmav1.Detached_Reason
	Text      string
}

// job is a Job with its tries. A host that cannot be reached for longer than a lease is left to
// the lease, and the switches to the next check of their groups.
type job struct {
	Job
	busy  bool
	at    time.Time // of the next try
	wait  time.Duration
	until time.Time
}

// drop ends memberships: those in one formation, or (0) in all.
func (s *Sender) drop(addrs []netip.Addr, mcID, formation uint32, reason mcrdmav1.Detached_Reason, text string, now time.Time) {
	for _, a := range addrs {
		s.add(Job{Addr: a, MCID: mcID, Formation: formation, Reason: reason, Text: text}, s.cfg.MemberLease, now)
	}
}

// remove takes a formation out of the switches.
func (s *Sender) remove(mcID uint32, now time.Time) {
	if s.cfg.Switch != "" {
		s.add(Job{MCID: mcID}, s.cfg.GroupLease, now)
	}
}

func (s *Sender) add(j Job, lease time.Duration, now time.Time) {
	s.jobID++
	j.ID = s.jobID
	s.jobs = append(s.jobs, &job{Job: j, at: now, wait: UndoAgain, until: now.Add(lease)})
	s.stepJobs(now)
}

func (s *Sender) stepJobs(now time.Time) {
	for _, j := range s.jobs {
		if !j.busy && !now.Before(j.at) && !s.held(j) {
			j.busy = true
			s.do(CleanUp{j.Job})
		}
	}
}

// held says whether a drop would meet a receiver that is joining.
func (s *Sender) held(j *job) bool {
	t := s.try
	return t != nil && t.phase != undoing && slices.Contains(t.joining, j.Addr)
}

// dropping says whether a drop may yet arrive at a receiver that is joining.
func (s *Sender) dropping() bool {
	return slices.ContainsFunc(s.jobs, func(j *job) bool { return j.busy && s.held(j) })
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
		j.at = now.Add(j.wait)
		j.wait = min(2*j.wait, undoSlow)
	}
	s.step(now)
}

func (s *Sender) finish(j *job) {
	s.jobs = slices.DeleteFunc(s.jobs, func(o *job) bool { return o == j })
	s.settle(j.MCID)
	if f := s.form; f != nil && f.switched() && f.MCID == j.MCID { // the formation that was to take its place was given up
		s.agent.missed = true
	}
}

// undoing says whether something of an MC_ID is still to be undone.
func (s *Sender) undoing(mcID uint32) bool {
	return slices.ContainsFunc(s.jobs, func(j *job) bool { return j.MCID == mcID })
}

// settle frees an MC_ID if nothing has it any longer.
func (s *Sender) settle(mcID uint32) {
	used := s.form != nil && s.form.MCID == mcID && (s.end == nil || !s.end.told) || s.try != nil && s.try.f != nil && s.try.f.MCID == mcID
	if mcID != 0 && !used && !s.undoing(mcID) {
		s.do(FreeNumber{mcID})
	}
}

// Leftover is a group of which nothing is known but that the switches have it.
func Leftover(cfg SenderConfig, mcID uint32, now time.Time) *Sender {
	s := NewSender(cfg)
	s.end = &ending{told: true}
	s.remove(mcID, now)
	s.step(now)
	return s
}
