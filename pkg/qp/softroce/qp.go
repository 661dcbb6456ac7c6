package softroce

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A QP is an RC queue pair.
type QP struct {
	dev            *Device
	pd             *PD
	qpn            rocev2.QPN
	init           qp.Init
	sendCQ, recvCQ *CQ

	touched bool // got packets in this batch; the receive goroutine's

	mu     sync.Mutex
	closed bool
	state  qp.State
	attr   qp.Attr // what Modify was given so far
	rc     *rc.QP  // from RTR on
	cfg    rc.Config
	early  []earlyRecv // receives posted in INIT
	pieces [][]byte    // scratch: an SGE list resolved to memory
	flow   uint16
	talked bool // a request arrived in RTR or later
	told   bool // the event of a failure was raised
	armed  time.Duration
	resume time.Duration // the alarm at which pump continues with more packets
	alarm  alarm
	share  share

	sending bool       // a goroutine is in link.Send, without the lock
	hold    int        // goroutines that wait until none is sending
	idle    *sync.Cond // on mu: sending became false while hold > 0
}

// An earlyRecv is a receive request that was posted before RTR.
type earlyRecv struct {
	id      uint64
	scatter [][]byte
}

// CreateQP implements qp.PD.
func (p *PD) CreateQP(init qp.Init) (qp.QP, error) {
	d := p.dev
	scq, ok1 := init.SendCQ.(*CQ)
	rcq, ok2 := init.RecvCQ.(*CQ)
	if !ok1 || !ok2 || scq == nil || rcq == nil || scq.dev != d || rcq.dev != d {
		return nil, fmt.Errorf("softroce: %w: a queue pair needs a send and a receive completion queue of its device", qp.ErrAttr)
	}
	for _, f := range []struct {
		name     string
		v        *int
		def, max int
	}{
		{"MaxSendWR", &init.MaxSendWR, qp.DefaultWR, MaxQPWR},
		{"MaxRecvWR", &init.MaxRecvWR, qp.DefaultWR, MaxQPWR},
		{"MaxSGE", &init.MaxSGE, qp.DefaultSGE, MaxSGE},
	} {
		*f.v = cmp.Or(*f.v, f.def)
		if *f.v < 1 || *f.v > f.max {
			return nil, fmt.Errorf("softroce: %w: %s %d is not 1..%d", qp.ErrAttr, f.name, *f.v, f.max)
		}
	}
	q := &QP{dev: d, pd: p, init: init, sendCQ: scq, recvCQ: rcq, armed: rc.Never,
		pieces: make([][]byte, 0, init.MaxSGE)}
	q.alarm = alarm{index: -1, qp: q}
	q.idle = sync.NewCond(&q.mu)

	d.mu.Lock()
	defer d.mu.Unlock()
	if p.closed || d.closed {
		return nil, errClosed("protection domain")
	}
	for _, c := range []*CQ{scq, rcq} {
		if _, ok := d.cqs[c]; !ok {
			return nil, errClosed("completion queue")
		}
	}
	if err := d.qps.add(q); err != nil {
		return nil, err
	}
	scq.users++
	rcq.users++
	p.qps[q] = struct{}{}
	return q, nil
}

// QPN implements qp.QP.
func (q *QP) QPN() rocev2.QPN { return q.qpn }

// State implements qp.QP.
func (q *QP) State() qp.State {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state
}

// Query implements qp.QP.
func (q *QP) Query() (qp.Attr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return qp.Attr{}, errClosed("queue pair")
	}
	a := q.attr
	a.State = q.state
	if q.rc != nil {
		sq, rq := q.rc.PSNs()
		a.RQPSN = rq
		if q.state == qp.StateRTS || q.state == qp.StateSQD {
			a.SQPSN = sq
		}
	}
	return a, nil
}

// Modify implements qp.QP.
func (q *QP) Modify(attr *qp.Attr, mask qp.AttrMask) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return errClosed("queue pair")
	}
	if err := qp.CheckModify(q.state, attr, mask); err != nil {
		return fmt.Errorf("softroce: queue pair %#x: %w", uint32(q.qpn), err)
	}
	if mask&qp.MaskPathMTU != 0 && attr.PathMTU > q.dev.mtu {
		return fmt.Errorf("softroce: queue pair %#x: %w: path MTU %d, but the link of %v allows %d",
			uint32(q.qpn), qp.ErrAttr, attr.PathMTU, q.dev.addr, q.dev.mtu)
	}
	next := q.state
	if mask&qp.MaskState != 0 {
		next = attr.State
	}
	switch next {
	case qp.StateReset:
		q.reset()
		return nil
	case qp.StateError:
		q.fail()
		return nil
	}
	q.attr.Merge(attr, mask)
	return q.enter(next)
}

// enter goes to state next, or stays and applies what Modify has changed.
func (q *QP) enter(next qp.State) error {
	prev := q.state
	q.state = next
	switch {
	case prev == qp.StateInit && next == qp.StateRTR:
		if err := q.connect(); err != nil {
			q.state = prev
			return err
		}
	case prev == qp.StateRTR && next == qp.StateRTS, prev == qp.StateSQD && next == qp.StateSQD:
		a := &q.attr
		q.cfg.SQPSN, q.cfg.Timeout, q.cfg.RetryCnt, q.cfg.RNRRetry = a.SQPSN, a.Timeout, a.RetryCnt, a.RNRRetry
		q.cfg.MaxRdAtomic = a.MaxRdAtomic
		q.rc.StartSend(&q.cfg)
	}
	if q.rc == nil {
		return nil
	}
	q.rc.SetAccess(q.attr.Access)
	q.rc.SetMinRNRTimer(q.attr.MinRNRTimer)
	q.rc.Drain(next == qp.StateSQD)
	q.pump(q.dev.now())
	return nil
}

// connect makes the state machines, in RTR.
func (q *QP) connect() error {
	a := &q.attr
	q.cfg = rc.Config{
		MaxSendWR: q.init.MaxSendWR, MaxRecvWR: q.init.MaxRecvWR, MaxSGE: q.init.MaxSGE, SignalAll: q.init.SignalAll,
		LocalQPN: q.qpn, RemoteQPN: a.DestQPN, PathMTU: a.PathMTU, RQPSN: a.RQPSN, MinRNRTimer: a.MinRNRTimer,
		MaxDestRdAtomic: a.MaxDestRdAtomic, CC: q.dev.opt.CC,
	}
	q.cfg.Window, q.cfg.AckEvery = window(q.dev.opt.Window, a.PathMTU, rxSpace(q.dev.link))
	q.rc = rc.NewQP(q.cfg, q.pd)
	q.flow = flow(q.qpn, a.DestQPN)
	for _, e := range q.early {
		if err := q.rc.PostRecv(e.id, e.scatter); err != nil {
			return err
		}
	}
	q.early = nil
	return nil
}

// What a veth with XDP or GRO at its other end buffers, in packets. The kernel frees places together
// (ptr_ring), so that as many less one may be taken by packets that are received already.
const (
	vethRing   = 256
	vethFrees  = 16
	vethOthers = 16 // left for packets that no window counts: beats, hellos, TCP, answers
)

// window returns how many packets may be unacknowledged, and how often to request an
// acknowledgement. The window is what a peer with a link like this one can buffer, space bytes,
// while its process is not scheduled, and at most what a veth can buffer; more would be lost. Each
// acknowledgement frees as many packets as fit into one GSO message, so that in the steady state
// every message is full.
func window(want, mtu, space int) (window, ackEvery int) {
	const (
		gsoBytes  = 65507
		enough    = 1 << 20 // a quarter of a millisecond at 40 Gb/s
		mostCount = vethRing - vethFrees - vethOthers
		overhead  = 512 // of a packet in a socket's buffer
	)
	if want <= 0 {
		want = min(min(space, enough)/(mtu+overhead), mostCount)
	}
	perMessage := min(64, gsoBytes/(mtu+rocev2.BTHLen+rocev2.ICRCLen))
	want = max(want, 1)
	return want, max(1, min(perMessage, want/4))
}

// rxSpace returns how much l buffers on receipt, or a conservative guess.
func rxSpace(l link.Link) int {
	if b, ok := l.(link.Buffered); ok {
		if n := b.RxSpace(); n > 0 {
			return n
		}
	}
	return 256 << 10
}

// flow hashes a connection, to select the UDP source port.
func flow(local, remote rocev2.QPN) uint16 {
	h := (uint32(local)*0x9e3779b1 ^ uint32(remote)) * 0x85ebca6b
	return uint16(h >> 16)
}

// fail brings the queue pair to the error state: everything queued completes
// with qp.WRFlushErr.
func (q *QP) fail() {
	q.state = qp.StateError
	if q.rc != nil {
		q.rc.SetError()
		q.pump(q.dev.now())
		return
	}
	for _, e := range q.early {
		q.complete(q.recvCQ, &qp.WC{ID: e.id, Status: qp.StatusWRFlushErr, Opcode: qp.WCRecv, QPN: q.qpn})
	}
	q.early = nil
}

// reset clears all state.
func (q *QP) reset() {
	q.stopSending()
	q.retire()
	q.state, q.attr, q.early, q.talked, q.told = qp.StateReset, qp.Attr{}, nil, false, false
}

// retire drops the state machines and keeps their statistics.
func (q *QP) retire() {
	if q.rc != nil {
		q.dev.counters.retire(q.rc.Stats())
		q.rc = nil
		q.dev.limiter.leave(q)
	}
	q.dev.timers.unset(&q.alarm)
	q.armed = rc.Never
}

// Close implements qp.QP.
func (q *QP) Close() error {
	if !q.destroy() {
		return errClosed("queue pair")
	}
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(q.pd.qps, q)
	q.sendCQ.users--
	q.recvCQ.users--
	return nil
}

// destroy removes the queue pair from the table and releases its memory. It reports false if that
// was done before.
func (q *QP) destroy() bool {
	if !q.dev.qps.remove(q) {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reset()
	q.closed = true
	return true
}

// release stops the use of region m's memory, whose keys are invalid already.
func (q *QP) release(m *MR) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopSending()
	held := q.rc != nil && q.rc.Holds(m.overlaps)
	for _, e := range q.early {
		for _, b := range e.scatter {
			held = held || m.overlaps(b)
		}
	}
	if !held {
		if q.rc != nil {
			q.pump(q.dev.now())
		}
		return
	}
	q.dev.event(qp.EventQPFatal, q.qpn, fmt.Errorf("softroce: %w: a memory region was closed under its work requests", qp.ErrSGE))
	q.told = true
	q.fail()
}

// cqFailed is called when one of the completion queues has overrun.
func (q *QP) cqFailed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.state == qp.StateError || q.state == qp.StateReset {
		return
	}
	q.dev.event(qp.EventQPFatal, q.qpn, fmt.Errorf("softroce: %w: a completion queue of the queue pair", qp.ErrOverrun))
	q.told = true
	q.fail()
}

// expire is called by the timer goroutine when the alarm has gone off.
func (q *QP) expire(now time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = rc.Never
	if q.rc == nil {
		return
	}
	q.rc.Tick(now)
	q.resume = now // after others whose alarm is due
	q.pump(now)
	q.resume = 0
}
