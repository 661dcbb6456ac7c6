package group

import (
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A Job is state that must be undone at another host or the switch.
type Job struct {
	ID        uint64
	Addr      netip.Addr // of the receiver whose membership ends; none: it is at the switch
	MCID      uint32     // that is freed when all its jobs are done; 0: none
	Formation uint32     // 0: all
	Reason    mcrdmav1.Detached_Reason
	Text      string
}

// job is a Job with its tries. A host that cannot be reached for longer than a lease is given up,
// because the lease expires there; the switches are left to the next check of their groups.
type job struct {
	Job
	busy  bool
	gone  bool      // the last try did not reach the host
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

// remove removes a formation from the switches.
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

// held reports whether a drop would hit a receiver that is joining.
func (s *Sender) held(j *job) bool {
	t := s.try
	return t != nil && t.phase != undoing && slices.Contains(t.joining, j.Addr)
}

// dropping reports whether a drop may still arrive at a receiver that is joining.
func (s *Sender) dropping() bool {
	return slices.ContainsFunc(s.jobs, func(j *job) bool { return j.busy && s.held(j) })
}

func (s *Sender) finish(j *job) {
	s.jobs = slices.DeleteFunc(s.jobs, func(o *job) bool { return o == j })
	s.settle(j.MCID)
	if f := s.form; f != nil && f.switched() && f.MCID == j.MCID { // the formation that was to take its place was given up
		s.agent.missed = true
	}
}

// undoing reports whether part of an MC_ID's formation is still to be undone.
func (s *Sender) undoing(mcID uint32) bool {
	return slices.ContainsFunc(s.jobs, func(j *job) bool { return j.MCID == mcID })
}

// waitsFor is undoing, without receivers that are lost, and so not in the next formation, and without
// members that could not be reached in the last try: the next formation does not need their answer to this.
func (s *Sender) waitsFor(mcID uint32) bool {
	return slices.ContainsFunc(s.jobs, func(j *job) bool {
		_, lost := s.lost[j.Addr]
		return j.MCID == mcID && !lost && !(j.gone && s.form != nil && s.form.Has(j.Addr))
	})
}

// settle frees an MC_ID that is no longer in use.
func (s *Sender) settle(mcID uint32) {
	used := s.form != nil && s.form.MCID == mcID && (s.end == nil || !s.end.told) || s.try != nil && s.try.f != nil && s.try.f.MCID == mcID
	if mcID != 0 && !used && !s.undoing(mcID) {
		s.do(FreeNumber{mcID})
	}
}
