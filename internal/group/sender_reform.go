package group

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// stepWaiting begins the formation that was requested first, when possible. It replaces a removal
// that the agent has not been asked for yet.
func (s *Sender) stepWaiting(now time.Time) {
	for len(s.waiting) > 0 && s.try == nil && s.end == nil && (s.removal == nil || !s.removal.updating) {
		r := s.waiting[0]
		if !s.dropped(r, now) {
			return
		}
		s.waiting = s.waiting[1:]
		if err := s.choose(r); err != nil {
			s.reply(r.call, nil, err)
			continue
		}
		s.abandon()
		r.was = s.state
		r.watch.lap("check", now)
		s.state = Reforming
		s.begin(r)
	}
}

// dropped reports that no drop can arrive at a receiver after it has been added again. A pending
// drop is tried once more.
func (s *Sender) dropped(r *request, now time.Time) bool {
	done := true
	for _, j := range s.jobs {
		switch {
		case !slices.Contains(r.again.Add, j.Addr):
		case j.busy:
			done = false
		case !r.flushed:
			j.at, done = now, false
		}
	}
	r.flushed = true
	return done
}

// choose determines the candidates of the next formation, and the receivers of the current one that
// are left out.
func (s *Sender) choose(r *request) error {
	if s.form.N != r.again.Formation {
		return failure.New(mcrdmav1.Reason_STALE, "the group is at formation %d, and not %d", s.form.N, r.again.Formation)
	}
	r.lost = map[netip.Addr]Loss{}
	counted := s.suspected.counted == s.form.N // the same formation's end, after a try that failed
	s.suspected.counted = s.form.N
	if !counted && !r.again.Fruitless && r.watch.begun.Sub(s.suspected.since) >= s.cfg.Grace {
		clear(s.suspected.in)
	}
	for _, a := range s.form.Addrs() {
		switch n := s.suspected.in[a]; {
		case len(r.again.Suspects) == 0 && len(r.again.Add) > 0: // nothing has failed
		case a != r.again.Reporter && !slices.Contains(r.again.Suspects, a):
			if !r.again.Fruitless {
				delete(s.suspected.in, a)
			}
		case !counted || n == 0:
			s.suspected.in[a]++
		}
	}
	for _, a := range s.form.Addrs() {
		l, lost := s.lost[a]
		switch n := s.suspected.in[a]; {
		case lost:
			r.lost[a] = l
		case n >= s.maxSuspected(a, r.again):
			r.lost[a] = Loss{Label: "suspected", Why: fmt.Sprintf("the sender has suspected it in %d formations in a row", n)}
		default:
			r.candidates = append(r.candidates, a)
		}
	}
	if r.again.Reporter.IsValid() {
		// Receivers that are first have connections with the sender, whose failure is clear. Of two that are
		// equally suspicious, each is first at times.
		slices.Reverse(r.candidates)
		slices.SortStableFunc(r.candidates, func(a, b netip.Addr) int { return cmp.Compare(s.suspected.in[b], s.suspected.in[a]) })
	}
	for _, a := range r.again.Add {
		if s.form.Has(a) {
			return failure.New(mcrdmav1.Reason_DUPLICATE_ADDRESS, "receiver %v is in the group already", a)
		}
		r.candidates, r.joining = append(r.candidates, a), append(r.joining, a)
	}
	if n := len(r.candidates); n > s.cfg.Receivers {
		return failure.New(mcrdmav1.Reason_TOO_MANY_RECEIVERS, "%d receivers, and %d is the most", n, s.cfg.Receivers)
	}
	s.departures = slices.DeleteFunc(s.departures, func(d Departure) bool { return slices.Contains(r.again.Add, d.Addr) })
	return nil
}

// maxSuspected is in how many formations in a row a receiver is suspected before it is left out. The
// suspect and the receiver that has named it count as suspected, and of these the one that has been
// for longer is left out: its other connections fail, too.
func (s *Sender) maxSuspected(a netip.Addr, again *Again) int {
	if !again.Reporter.IsValid() || len(again.Suspects) == 0 {
		return MaxSuspected
	}
	other := again.Reporter
	if a == other {
		other = again.Suspects[0]
	}
	switch n, of := s.suspected.in[a], s.suspected.in[other]; {
	case n > of:
		return MaxSuspected
	case n == of && a != again.Reporter:
		return MaxUnclear
	}
	return math.MaxInt
}

// stepUndoing undoes the formation once no call is in flight that might arrive later.
func (s *Sender) stepUndoing(now time.Time) {
	t := s.try
	if t.busy || len(t.calls) > 0 {
		return
	}
	if t.until.IsZero() {
		t.until = now.Add(UndoTime)
		if t.f != nil {
			for _, a := range slices.SortedFunc(maps.Keys(t.reached), netip.Addr.Compare) {
				n := t.f.N
				if slices.Contains(t.joining, a) {
					n = 0
				}
				s.drop([]netip.Addr{a}, t.f.MCID, n, mcrdmav1.Detached_REASON_ABORTED, t.err.Error(), now)
			}
			if t.left {
				s.remove(t.f.MCID, now)
			}
		}
	}
	done, err := s.durable(t.version)
	if !done && err == nil || t.f != nil && s.waitsFor(t.f.MCID) && now.Before(t.until) {
		return
	}
	s.try = nil
	if t.f != nil {
		s.settle(t.f.MCID)
	}
	s.after(t)
}

// after continues after a failed formation: with the next try, or in the previous state.
func (s *Sender) after(t *try) {
	var behind *behindError
	var late *lateError
	err := t.err
	switch {
	case s.end != nil:
		s.reply(t.call, nil, s.endedError())
		return
	case s.form == nil:
		s.close(&ending{Ending: Ending{Reason: mcrdmav1.Detached_REASON_ABORTED, Text: err.Error()}})
		s.end.replies = append(s.end.replies, ReplySender{t.call, err, nil})
		return
	case errors.As(err, &behind) && !t.cancelled:
		s.last = max(s.last, behind.last)
		t.skipped = true
		t.tries--
		s.begin(t.request)
		return
	case t.cancelled || len(t.out) == 0 || t.tries == formTries || errors.As(err, &late) || failure.Is(err, mcrdmav1.Reason_MIN_SIZE):
	default:
		maps.Copy(t.lost, lostIn(t.out))
		t.candidates = slices.DeleteFunc(slices.Clone(t.candidates), func(a netip.Addr) bool { return t.out[a] != nil })
		s.begin(t.request)
		return
	}
	s.state = t.was
	s.save()
	if failure.Is(err, mcrdmav1.Reason_MIN_SIZE) && !s.cfg.Waits {
		s.fail(err.Error(), mcrdmav1.Reason_MIN_SIZE)
		s.end.replies = append(s.end.replies, ReplySender{t.call, err, nil})
		return
	}
	s.reply(t.call, nil, err)
}
