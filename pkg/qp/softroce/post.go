package softroce

import (
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// PostSend implements qp.QP. It transmits before it returns, as far as the
// window and the rate allow.
func (q *QP) PostSend(wr *qp.SendWR) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return errClosed("queue pair")
	case q.state == qp.StateError && q.rc == nil: // it failed before it was connected
		q.complete(q.sendCQ, &qp.WC{ID: wr.ID, Status: qp.StatusWRFlushErr, QPN: q.qpn})
		return nil
	case q.state != qp.StateRTS && q.state != qp.StateSQD && q.state != qp.StateError:
		return fmt.Errorf("softroce: %w: send posted in %v, it takes RTS", qp.ErrState, q.state)
	}
	if err := qp.CheckOpcode(wr.Opcode, q.init.Multicast); err != nil {
		return err
	}
	if err := q.gather(wr.SGEs, wr.Opcode == qp.OpRead); err != nil {
		return err
	}
	err := q.rc.PostSend(wr, q.pieces)
	clear(q.pieces)
	if err != nil {
		return fmt.Errorf("softroce: queue pair %#x: %w", uint32(q.qpn), err)
	}
	q.pump(q.dev.now())
	return nil
}

// PostRecv implements qp.QP.
func (q *QP) PostRecv(wr *qp.RecvWR) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return errClosed("queue pair")
	case q.state == qp.StateReset:
		return fmt.Errorf("softroce: %w: receive posted in RESET", qp.ErrState)
	}
	if err := q.gather(wr.SGEs, true); err != nil {
		return err
	}
	defer clear(q.pieces)
	switch {
	case q.rc != nil:
		if err := q.rc.PostRecv(wr.ID, q.pieces); err != nil {
			return fmt.Errorf("softroce: queue pair %#x: %w", uint32(q.qpn), err)
		}
		if q.state == qp.StateError {
			q.pump(q.dev.now())
		}
	case q.state == qp.StateError:
		q.complete(q.recvCQ, &qp.WC{ID: wr.ID, Status: qp.StatusWRFlushErr, Opcode: qp.WCRecv, QPN: q.qpn})
	case len(q.early) >= q.init.MaxRecvWR:
		return fmt.Errorf("softroce: queue pair %#x: %w: %d receive requests outstanding", uint32(q.qpn), qp.ErrQueueFull, len(q.early))
	default:
		q.early = append(q.early, earlyRecv{wr.ID, slices.Clone(q.pieces)})
	}
	return nil
}

// gather resolves sges to memory in q.pieces.
func (q *QP) gather(sges []qp.SGE, write bool) (err error) {
	if len(sges) > q.init.MaxSGE {
		return fmt.Errorf("softroce: %w: %d entries, the queue pair allows %d", qp.ErrSGE, len(sges), q.init.MaxSGE)
	}
	q.pieces, err = q.pd.local(q.pieces[:0], sges, write)
	return err
}
