package group

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

func (s *Sender) prepare(now time.Time) {
	t := s.try
	t.phase = preparing
	limit := s.cfg.ReformTime
	if s.form == nil {
		limit = s.cfg.PrepareTime
	}
	if !t.by.IsZero() {
		limit = min(limit, t.by.Sub(now))
	}
	for _, j := range slices.Clone(s.jobs) {
		if s.held(j) { // if this formation is given up, all is dropped there
			s.finish(j)
		}
	}
	for _, a := range t.candidates {
		t.calls[a], t.reached[a] = preparing, true
		s.do(PrepareMember{a, t.f, slices.Contains(t.joining, a), limit})
	}
}

// stepTry goes on with the formation.
func (s *Sender) stepTry(now time.Time) {
	t := s.try
	if t == nil {
		return
	}
	done, err := s.durable(t.version)
	if t.phase == recording && err != nil {
		s.giveUp(err)
	} else if t.phase == recording && done && !s.dropping() {
		s.prepare(now)
	}
	switch t.phase {
	case preparing:
		s.stepPreparing(err, now)
	case committing:
		if len(t.calls) == 0 && err != nil {
			s.giveUp(err)
		} else if len(t.calls) == 0 && done {
			s.formed(now)
		}
	}
	if t.err != nil {
		s.stepUndoing(now)
	}
}

func (s *Sender) stepPreparing(err error, now time.Time) {
	t := s.try
	if len(t.calls) > 0 {
		return
	}
	if n := t.ahead(); n > 0 && !t.skipped {
		s.giveUp(&behindError{n})
		return
	}
	f := *t.f
	for _, a := range t.candidates {
		if r, ok := t.ready[a]; ok {
			f.Receivers = append(f.Receivers, r)
		}
	}
	slow := s.slow(len(f.Receivers))
	switch {
	case slow != nil:
		s.giveUp(slow)
	case !s.enough(len(f.Receivers)):
		s.giveUp(s.tooFew(len(f.Receivers)))
	case err != nil:
		s.giveUp(err)
	default: // if the record of a new group is not durable when the daemon ends, the next run sweeps the switch
		f.First = f.Receivers[0].Addr
		f.settle(t.joining)
		t.watch.lap("prepare", now)
		t.f, t.phase, t.busy, t.left = &f, installing, true, true
		install := InstallFormation{Formation: t.f}
		if s.form != nil && s.form.switched() && s.cfg.Switch != "" {
			install.Old, s.agent.missed = s.form, true
		}
		s.do(install)
	}
}

// ahead returns the highest formation number that receivers know; 0: none is as high as the one
// begun.
func (t *try) ahead() (n uint32) {
	for _, err := range t.out {
		if f, ok := errors.AsType[*failure.Error](err); ok && f.Reason == mcrdmav1.Reason_STALE && f.Formation >= t.f.N && f.Formation-t.f.N < maxAhead {
			n = max(n, f.Formation)
		}
	}
	return n
}

// settle determines the message count at which the receivers continue. A receiver that joins has
// nothing, and begins there.
func (f *Formation) settle(joining []netip.Addr) {
	f.Have = f.Sender.Sent
	for _, r := range f.Receivers {
		if !slices.Contains(joining, r.Addr) {
			f.Have = min(f.Have, r.Have)
		}
	}
	for i, r := range f.Receivers {
		if slices.Contains(joining, r.Addr) {
			f.Receivers[i].Have = f.Have
		}
	}
}

// slow returns an error if the formation must be tried again with receivers that have not answered
// in time; ready is the number of those that have. Late receivers that are not known to be dead, or
// this host, may have been busy. A receiver that stays late is left out; a joining one is left out
// at once. A formation waits for daemons that cannot be reached if it is impossible without them, or
// nothing suspects their applications: soon they come back, or are dead. The error names one of these hosts, so that the
// sender's application can find out whether it has to be waited for.
func (s *Sender) slow(ready int) error {
	t, late, gone, well, out, host := s.try, 0, 0, 0, 0, ""
	for _, a := range slices.SortedFunc(maps.Keys(t.out), netip.Addr.Compare) {
		err := t.out[a]
		if _, lost := s.lost[a]; lost || !away(err) {
			continue
		}
		out++
		joins := slices.Contains(t.joining, a)
		if failure.Is(err, mcrdmav1.Reason_UNREACHABLE) {
			gone++
			if !t.reached[a] && !joins && !t.suspects(a) {
				well++
				host = s.form.Receiver(a).Host
			}
		}
		if t.reached[a] && !(s.enough(ready) && joins) {
			late++
		}
	}
	text := ""
	if !s.enough(ready) {
		text = s.few(ready) + "; "
	}
	switch {
	case s.form == nil:
	case (text != "" || well > 0) && s.enough(ready+gone):
		return &lateError{failure.New(mcrdmav1.Reason_UNREACHABLE, "%s%s did not answer, and may yet: try again", text, Plural(gone, "daemon")).AtHost(host)}
	case late > 0 && s.late < MaxLate && s.enough(ready+out):
		s.late++
		return &lateError{failure.New(mcrdmav1.Reason_TIMEOUT, "%s%s did not answer in time, and may yet: try again", text, Plural(late, "receiver"))}
	}
	return nil
}

// tooFew returns the error of a formation with too few receivers.
func (s *Sender) tooFew(n int) error {
	t := s.try
	for _, a := range t.candidates {
		if err := t.out[a]; err != nil {
			return failure.New(mcrdmav1.Reason_MIN_SIZE, "%s; the first that is missing: %v", s.few(n), err)
		}
	}
	return failure.New(mcrdmav1.Reason_MIN_SIZE, "%s", s.few(n))
}

// formed makes a formation the current one.
func (s *Sender) formed(now time.Time) {
	t, old := s.try, s.form
	f := *t.f
	t.watch.lap("commit", now)
	f.Phases = append(t.watch.phases, Phase{"total", now.Sub(t.watch.begun)})
	s.form, s.try, s.state, s.late = &f, nil, Active, 0
	maps.Copy(t.lost, lostIn(t.out))
	clear(s.lost)
	s.suspected.since = now
	f.Absent = t.absent(&f)
	s.agent = agent{wait: s.agent.wait, drawing: s.agent.drawing}
	s.agent.plan(&f, now)
	s.do(FormationComplete{&f})
	if old == nil {
		s.tell(TellSender{Type: mcrdmav1.GroupChanged_TYPE_CREATED})
	} else {
		s.leftOut(old, t, now)
		s.settle(old.MCID)
	}
	s.reply(t.call, &f, nil)
	if t.news != nil && f.switched() {
		s.heard(*t.news, now)
	}
	s.draw()
}

// leftOut removes receivers of the previous formation that are not in the current one, and drops
// the state of those that could not join.
func (s *Sender) leftOut(old *Formation, t *try, now time.Time) {
	var gone []netip.Addr
	for _, x := range old.Receivers {
		if l := t.lost[x.Addr]; !s.form.Has(x.Addr) {
			gone = append(gone, x.Addr)
			s.depart(Departure{Addr: x.Addr, Host: x.Host, Why: l.Why, At: now}, l.Label)
		}
	}
	late := slices.DeleteFunc(slices.Clone(t.joining), func(a netip.Addr) bool { return s.form.Has(a) || !t.reached[a] })
	s.drop(late, 0, 0, mcrdmav1.Detached_REASON_ABORTED, "it was not ready in time", now)
	if len(gone) > 0 {
		s.save()
		s.drop(gone, 0, 0, mcrdmav1.Detached_REASON_REMOVED, "it could not be in the next formation", now)
	}
}
