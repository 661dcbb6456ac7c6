package mcrdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// The attributes of queue pairs.
const (
	ackTimeout  = 16 // 268 ms, if the daemon gives none: with the retries, more than it takes to detect a dead receiver and to take it out
	retries     = 7
	rnrRetries  = 7  // unlimited: a receiver may post receives at any time
	minRNRTimer = 12 // 0.64 ms
	flushWithin = time.Second
)

// A queuePair is a queue pair and its completion queue.
type queuePair struct {
	cq qp.CQ
	qp qp.QP // nil: none
}

// newQueuePair makes a queue pair in INIT.
func (c *Client) newQueuePair(depth int, init qp.Init, access qp.Access) (p queuePair, err error) {
	if p.cq, err = c.dev.CreateCQ(depth); err != nil {
		return queuePair{}, err
	}
	init.SendCQ, init.RecvCQ = p.cq, p.cq
	if p.qp, err = c.pd.CreateQP(init); err == nil {
		err = p.qp.Modify(&qp.Attr{State: qp.StateInit, Access: access}, qp.MaskInit)
	}
	if err != nil {
		p.close()
		return queuePair{}, err
	}
	return p, nil
}

// flush ends the queue pair. What was acknowledged before completes, the rest comes back
// flushed: poll takes that, while there is something left.
func (p queuePair) flush(left func() bool, poll func() error) {
	_ = p.qp.Modify(&qp.Attr{State: qp.StateError}, qp.MaskState)
	ctx, cancel := context.WithTimeout(context.Background(), flushWithin)
	defer cancel()
	for left() && p.cq.Wait(ctx) == nil && poll() == nil {
	}
}

func (p queuePair) close() {
	if p.qp != nil {
		_ = p.qp.Close()
	}
	if p.cq != nil {
		_ = p.cq.Close()
	}
}

// An endpoint is what a host brings to a formation.
type endpoint struct {
	queuePair              // none: no device
	listener  net.Listener // nil: no relaying
}

func (e *endpoint) qpn() uint32 {
	if e.qp == nil {
		return 0
	}
	return uint32(e.qp.QPN())
}

func (e *endpoint) bootstrap() string {
	if e.listener == nil {
		return ""
	}
	return e.listener.Addr().String()
}

// listen listens for the other members of a group in which hosts relay.
func (e *endpoint) listen(c *Client) (err error) {
	e.listener, err = c.opt.Listen("tcp", net.JoinHostPort(cmp.Or(c.hello.GetBootstrap(), c.hello.GetAddress()), "0"))
	if err != nil {
		return fmt.Errorf("listen for relaying: %w", err)
	}
	return nil
}

// close ends all that no path has taken.
func (e *endpoint) close() {
	e.queuePair.close()
	if e.listener != nil {
		_ = e.listener.Close()
	}
	*e = endpoint{}
}

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

// timeoutOf is the local ACK timeout, as its exponent.
func timeoutOf(c *mcrdmav1.Connection) uint8 {
	if t := c.GetTimeout(); t > 0 && t < 32 {
		return uint8(t)
	}
	return ackTimeout
}

// ready takes a queue pair from INIT to RTS.
func ready(q qp.QP, c *mcrdmav1.Connection) error {
	addr, err := netip.ParseAddr(c.GetAddress())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDaemon, err)
	}
	psn := rocev2.PSN(c.GetPsn())
	err = q.Modify(&qp.Attr{State: qp.StateRTR, DestAddr: addr, DestQPN: rocev2.QPN(c.GetQpn()), PathMTU: int(c.GetMtu()),
		RQPSN: psn, MinRNRTimer: minRNRTimer, DSCP: uint8(c.GetDscp())}, qp.MaskRTR|qp.MaskDSCP)
	if err != nil {
		return err
	}
	return q.Modify(&qp.Attr{State: qp.StateRTS, SQPSN: psn, Timeout: timeoutOf(c), RetryCnt: retries, RNRRetry: rnrRetries}, qp.MaskRTS)
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
	if !op.Kind.send() {
		r := s.g.regions[op.At.Region]
		s.wr.RemoteAddr, s.wr.RKey = r.GetVa()+op.At.Offset, r.GetRkey()
	}
	if err := s.qp.PostSend(&s.wr); err != nil {
		return err
	}
	s.posted++
	s.g.tally.posts.Add(1)
	return nil
}

// heard returns when receivers were last heard of, or what waits for them was sent, and how long the
// device has learnt to wait for them.
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

// maxNudges limits the nudges under way: those of hurry, and that of a removal.
const maxNudges = 4

// nudge makes the receivers acknowledge once more, now that one of them was taken out: an
// operation that the others have acknowledged is complete as soon as any of them answers
// the switch again, and otherwise after the queue pair's timeout. An empty WRITE does it.
func (s *switched) nudge() {
	if s.nudges.Load() == maxNudges || len(s.g.regions) == 0 {
		return
	}
	r := s.g.regions[0]
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

// failure says why a completion is bad.
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
