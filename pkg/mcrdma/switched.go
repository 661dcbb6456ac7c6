package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// switched is the path through switches: one queue pair, whose peer stands for all
// receivers; each operation is one send request and one completion.
type switched struct {
	queuePair
	g   *Group
	wcs [64]qp.WC

	// Of post and nudge, which are called one after the other:
	wr     qp.SendWR
	sges   [MaxPieces]qp.SGE
	posted uint64       // since the beginning of the formation
	nudges atomic.Int32 // that are under way

	// The runner's:
	completed uint64 // failed ones included
	broken    bool   // one has failed: completions after it don't count
}

// post implements outbound.
func (s *switched) post(o *queued) error {
	op, n := o.op, 0
	for i := range op.Pieces {
		if op.Pieces[i].n > 0 {
			s.sges[n] = op.Pieces[i].sge()
			n++
		}
	}
	s.wr = qp.SendWR{ID: s.posted, Opcode: qp.Opcode(op.Kind), Flags: qp.FlagSignaled, SGEs: s.sges[:n], Imm: op.Imm}
	if op.Deferred {
		s.wr.Flags |= qp.FlagDeferred
	}
	if !op.Kind.send() {
		r := s.g.places[op.At.Region]
		s.wr.RemoteAddr, s.wr.RKey = r.GetVa()+op.At.Offset, r.GetRkey()
	}
	if err := s.qp.PostSend(&s.wr); err != nil {
		return err
	}
	s.posted++
	s.g.tally.posts.Add(1)
	return nil
}

// heard implements outbound.
func (s *switched) heard(now, moved time.Time) (time.Time, time.Duration) {
	q, ok := s.qp.(qp.Silencer)
	if !ok {
		return moved, 0
	}
	silence, patience := q.Silence()
	if last := now.Add(-silence); last.After(moved) {
		moved = last
	}
	return moved, patience
}

// nudgeID is the ID of a nudge; operations have others.
const nudgeID = 1 << 63

// maxNudges limits the nudges in flight: those of hurry, and that of a removal.
const maxNudges = 4

// nudge implements outbound: after the removal of a receiver, an operation that the others have
// acknowledged completes as soon as any of them answers again, otherwise only after the queue
// pair's timeout. An empty WRITE makes them answer.
func (s *switched) nudge() {
	if s.nudges.Load() == maxNudges || len(s.g.places) == 0 {
		return
	}
	r := s.g.places[0]
	s.wr = qp.SendWR{ID: nudgeID, Opcode: qp.OpWrite, Flags: qp.FlagSignaled, RemoteAddr: r.GetVa(), RKey: r.GetRkey()}
	if s.qp.PostSend(&s.wr) == nil { // otherwise the timeout does it
		s.nudges.Add(1)
	}
}

// run implements outbound.
func (s *switched) run(ctx context.Context) error {
	err := s.carry(ctx)
	s.g.halt()
	s.flush(func() bool { return s.completed < s.posted }, func() error {
		_ = s.poll() // of what has failed
		return nil
	})
	s.close()
	return err
}

// carry handles completions until the formation ends.
func (s *switched) carry(ctx context.Context) error {
	for {
		if err := s.poll(); err != nil {
			return err
		}
		if err := s.cq.Wait(ctx); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
	}
}

// poll takes a batch of completions. It returns the error of the first that failed.
func (s *switched) poll() error {
	n, err := s.cq.Poll(s.wcs[:])
	if err != nil {
		return err
	}
	good := 0
	for i := range s.wcs[:n] {
		wc := &s.wcs[i]
		nudge := wc.ID == nudgeID
		switch {
		case s.broken:
		case nudge && wc.Status == qp.StatusSuccess:
			s.nudges.Add(-1)
		case wc.Status == qp.StatusSuccess && wc.ID == s.completed:
			good++
		default:
			s.broken, err = true, failure(wc)
		}
		if !nudge {
			s.completed++
			s.g.tally.completions.Add(1)
		}
	}
	s.g.finish(good)
	return err
}

// failure returns the error of a failed completion.
func failure(wc *qp.WC) error {
	if wc.Status == qp.StatusSuccess {
		return errors.New("completions are out of order")
	}
	e := &formationError{err: wc.Status.Err()}
	switch wc.Status {
	case qp.StatusRemInvReqErr, qp.StatusRemAccessErr, qp.StatusRemOpErr:
		// The switch has counted which receiver refused. The others were cut off at
		// different places, so what each has acknowledged says nothing about it.
		e.blame, e.refused, e.err = true, true, fmt.Errorf("a receiver refused: %w", e.err)
	case qp.StatusRetryExcErr:
		e.blame, e.err = true, fmt.Errorf("nothing is acknowledged: %w", e.err)
	}
	return e
}
