package unicast

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	boards      = 4 // receives for boards: one is under way, and what has come is posted again late
	receives    = Slots + boards
	slotLen     = headerLen + MaxMessage
	reads       = 4 // outstanding READs
	retries     = 7
	minRNRTimer = 12 // 0.64 ms
)

// IDs of requests, besides those of receives, which are their slots.
const (
	idOp = 1<<32 + iota
	idBoard
)

// An rdma is the link over a queue pair. What is sent as a SEND is copied to slots of its own, so it is
// one piece of memory, with its header.
type rdma struct {
	e      *End
	conn   net.Conn // its end says that the peer's process has ended
	cq     qp.CQ
	qp     qp.QP
	psn    uint32
	in     qp.MR // receives, one slot for each
	out    qp.MR // a slot for each message, and one for a board
	remote []Remote
	sent   int // messages
	wr     qp.SendWR
	sges   []qp.SGE
	wcs    [32]qp.WC
}

// newRDMA makes a queue pair in INIT, with its receives posted.
func newRDMA(e *End, conn net.Conn) (q *rdma, err error) {
	cfg := &e.cfg
	window := cfg.Window + 1
	q = &rdma{e: e, conn: conn, psn: rand.Uint32N(rocev2.Mask24 + 1), sges: make([]qp.SGE, cfg.SGEs)} //nolint:gosec // not a secret
	defer func() {
		if err != nil {
			q.close()
		}
	}()
	if q.in, err = cfg.PD.RegMR(make([]byte, receives*slotLen), qp.AccessLocalWrite); err != nil {
		return nil, err
	}
	if q.out, err = cfg.PD.RegMR(make([]byte, (Slots+1)*slotLen), qp.AccessLocalWrite); err != nil {
		return nil, err
	}
	if q.cq, err = cfg.Device.CreateCQ(window + receives); err != nil {
		return nil, err
	}
	q.qp, err = cfg.PD.CreateQP(qp.Init{SendCQ: q.cq, RecvCQ: q.cq, MaxSendWR: window, MaxRecvWR: receives, MaxSGE: cfg.SGEs, SignalAll: true})
	if err != nil {
		return nil, err
	}
	access := qp.Access(0)
	if cfg.Member {
		access = qp.AccessRemoteWrite | qp.AccessRemoteRead
	}
	if err := q.qp.Modify(&qp.Attr{State: qp.StateInit, Access: access}, qp.MaskInit); err != nil {
		return nil, err
	}
	for i := range receives {
		if err := q.receive(i); err != nil {
			return nil, err
		}
	}
	return q, nil
}

func (q *rdma) hello() Hello {
	return Hello{QPN: uint32(q.qp.QPN()), PSN: q.psn, MTU: uint32(q.e.cfg.Device.Attr().ActiveMTU)}
}

// connect takes the queue pair to RTS.
func (q *rdma) connect(mine, peer Hello, addr netip.Addr, timeout uint8) error {
	err := q.qp.Modify(&qp.Attr{State: qp.StateRTR, DestAddr: addr, DestQPN: rocev2.QPN(peer.QPN), PathMTU: int(min(mine.MTU, peer.MTU)),
		RQPSN: rocev2.PSN(peer.PSN), MinRNRTimer: minRNRTimer, MaxDestRdAtomic: reads}, qp.MaskRTR|qp.MaskMaxDestRdAtomic)
	if err == nil {
		err = q.qp.Modify(&qp.Attr{State: qp.StateRTS, SQPSN: rocev2.PSN(q.psn), Timeout: timeout, RetryCnt: retries, RNRRetry: 7, MaxRdAtomic: reads},
			qp.MaskRTS|qp.MaskMaxRdAtomic)
	}
	return err
}

// close lets go of everything.
func (q *rdma) close() {
	if q.qp != nil {
		_ = q.qp.Close()
	}
	if q.cq != nil {
		_ = q.cq.Close()
	}
	for _, mr := range []qp.MR{q.in, q.out} {
		if mr != nil {
			_ = mr.Close()
		}
	}
}

func (q *rdma) receive(slot int) error {
	return q.qp.PostRecv(&qp.RecvWR{ID: uint64(slot), SGEs: []qp.SGE{q.in.SGE(slot*slotLen, slotLen)}})
}

// slot returns the bytes of a slot to send from, in which a frame is to be built.
func (q *rdma) slot(i int) []byte { return q.out.Bytes()[i*slotLen : i*slotLen : (i+1)*slotLen] }

// tell implements link.
func (q *rdma) tell(b Board) error {
	return q.send(idBoard, Slots, len(appendBoard(q.slot(Slots), b)))
}

// send posts what was built in a slot.
func (q *rdma) send(id uint64, slot, n int) error {
	q.wr = qp.SendWR{ID: id, Opcode: qp.OpSend, SGEs: append(q.sges[:0], q.out.SGE(slot*slotLen, n))}
	return q.qp.PostSend(&q.wr)
}

// post implements link.
func (q *rdma) post(op *Op) error {
	if op.Kind == qp.OpSend || op.Kind == qp.OpSendImm {
		slot := q.sent % Slots
		q.sent++
		h := header{Kind: kinds[op.Kind], Imm: op.Imm, Length: op.size()}
		b := h.appendTo(q.slot(slot))
		for _, x := range op.Bufs {
			b = append(b, x.Bytes...)
		}
		return q.send(idOp, slot, len(b))
	}
	r := q.remote[op.Region]
	q.wr = qp.SendWR{ID: idOp, Opcode: op.Kind, Imm: op.Imm, RemoteAddr: r.VA + op.Offset, RKey: r.RKey, SGEs: q.sges[:0]}
	if op.Deferred {
		q.wr.Flags = qp.FlagDeferred
	}
	for _, x := range op.Bufs {
		if len(x.Bytes) > 0 {
			q.wr.SGEs = append(q.wr.SGEs, x.SGE)
		}
	}
	return q.qp.PostSend(&q.wr)
}

// sync implements link: it passes the lock under which the queue pair wrote.
func (q *rdma) sync() { _, _ = q.qp.Query() }

// run implements link.
func (q *rdma) run(ctx context.Context) error {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if _, err := q.conn.Read(make([]byte, 1)); err != nil {
			cut(fmt.Errorf("the peer has closed the connection: %w", err))
		} else {
			cut(fmt.Errorf("%w: it sends by TCP, beside the queue pair", ErrPeer))
		}
	}()
	err := q.carry(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	_ = q.conn.Close()
	<-gone
	if ctx.Err() != nil && !errors.Is(err, ErrPeer) {
		q.rest()
	}
	_ = q.qp.Close() // nothing uses memory of operations from now on
	return err
}

// rest takes what has come since carry has ended: the device has acknowledged it, and the peer does not send it again.
func (q *rdma) rest() {
	if q.qp.Modify(&qp.Attr{State: qp.StateError}, qp.MaskState) != nil {
		return
	}
	var p progress
	for n, err := q.cq.Poll(q.wcs[:]); n > 0 && err == nil; n, err = q.cq.Poll(q.wcs[:]) {
		for i := range q.wcs[:n] {
			if wc := &q.wcs[i]; wc.Status == qp.StatusSuccess {
				_ = q.take(wc, &p) // its receive is not posted again
			}
		}
	}
	_ = q.e.advance(p)
}

func (q *rdma) carry(ctx context.Context) error {
	for {
		n, err := q.cq.Poll(q.wcs[:])
		if err != nil {
			return err
		}
		var p progress
		for i := range q.wcs[:n] {
			if err := q.take(&q.wcs[i], &p); err != nil {
				return errors.Join(err, q.e.advance(p))
			}
		}
		if p != (progress{}) {
			if err := q.e.advance(p); err != nil {
				return err
			}
		}
		if n == 0 {
			if err := q.cq.Wait(ctx); err != nil {
				return err
			}
		}
	}
}

// take takes a completion.
func (q *rdma) take(wc *qp.WC, p *progress) error {
	if err := wc.Status.Err(); err != nil {
		return err
	}
	switch wc.ID {
	case idOp:
		p.completed++
		return nil
	case idBoard:
		p.told = true
		return nil
	}
	slot, err := int(wc.ID), error(nil)
	switch {
	case wc.Opcode != qp.WCRecvWriteImm:
		err = q.frame(q.in.Bytes()[slot*slotLen:][:wc.ByteLen])
	case q.e.cfg.Member:
		err = q.e.came(Message{Kind: qp.OpWriteImm, Imm: wc.Imm, N: int(wc.ByteLen)})
	default:
		err = fmt.Errorf("%w: a member writes to its sender", ErrPeer)
	}
	if err == nil {
		err = q.receive(slot)
	}
	return err
}

// frame takes a frame that came.
func (q *rdma) frame(frame []byte) error {
	var h header
	if len(frame) < headerLen {
		return fmt.Errorf("%w: a frame of %d bytes", ErrPeer, len(frame))
	}
	if err := h.parse(frame); err != nil {
		return err
	}
	body := frame[headerLen:]
	if h.Length != uint64(len(body)) {
		return fmt.Errorf("%w: a frame says %d bytes, and has %d", ErrPeer, h.Length, len(body))
	}
	switch h.Kind {
	case kindBoard:
		return q.e.hear(parseBoard(body))
	case kindSend, kindSendImm:
		return q.e.came(h.message(append([]byte(nil), body...)))
	}
	return fmt.Errorf("%w: a frame of kind %d on a queue pair", ErrPeer, h.Kind)
}

// message returns the message that a SEND is.
func (h *header) message(data []byte) Message {
	m := Message{Kind: qp.OpSend, Imm: h.Imm, N: len(data), Data: data}
	if h.Kind == kindSendImm {
		m.Kind = qp.OpSendImm
	}
	return m
}
