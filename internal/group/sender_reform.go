package group

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// stepWaiting begins the formation that was asked for first, when it may. It takes the place
// of a removal of which the agent does not know yet.
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
		if r.was = s.state; s.removal != nil {
			r.was = Active
			s.abandon()
		}
		r.watch.lap("check", now)
		s.state = Reforming
		s.begin(r)
	}
}

// dropped says whether no drop can come to a receiver after it has been added again. One that
// waits is tried once more.
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

// choose determines the candidates of the next formation, and the receivers of the present one
// that are not to be in it.
func (s *Sender) choose(r *request) error {
	if s.form == nil {
		return s.endedError()
	}
	if s.form.N != r.again.Formation {
		return failure.New(mcrdmav1.Reason_STALE, "the group is at formation %d, and not %d", s.form.N, r.again.Formation)
	}
	r.lost = map[netip.Addr]Loss{}
	counted := s.suspected.counted == s.form.N // the same formation's end, after a try that failed
	s.suspected.counted = s.form.N
	for _, a := range s.form.Addrs() {
		switch n := s.suspected.in[a]; {
		case !slices.Contains(r.again.Suspects, a):
			delete(s.suspected.in, a)
		case !counted || n == 0:
			s.suspected.in[a]++
		}
		l, lost := s.lost[a]
		switch n := s.suspected.in[a]; {
		case lost:
			r.lost[a] = l
		case n >= MaxSuspected:
			r.lost[a] = Loss{Label: "suspected", Why: fmt.Sprintf("the sender has suspected it in %d formations in a row", n)}
		default:
			r.candidates = append(r.candidates, a)
		}
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
