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

// stepUndoing undoes the formation when no call is under way, which might arrive later.
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
	if !done && err == nil || t.f != nil && s.undoing(t.f.MCID) && now.Before(t.until) {
		return
	}
	s.try = nil
	if t.f != nil {
		s.settle(t.f.MCID)
	}
	s.after(t, now)
}

// after goes on after a formation that was given up: with the next try, or as before.
func (s *Sender) after(t *try, now time.Time) {
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
	s.stepRemoval(now)
}
