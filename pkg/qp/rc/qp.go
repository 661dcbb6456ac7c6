package rc

import (
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A QP is an RC queue pair from RTR on: one Requester and one Responder, which fail together.
type QP struct {
	cfg  Config
	req  Requester
	resp Responder
	bad  uint64 // packets that belong to neither half
	turn bool   // the next packet is a READ response rather than a request
}

// Stats holds the counters of both halves.
type Stats struct {
	Requester  RequesterStats
	Responder  ResponderStats
	Unexpected uint64 // READ responses and other packets that match no request
}

// NewQP returns a queue pair in RTR: it answers requests, and sends none
// before StartSend. Zero sizes in cfg mean qp's defaults.
func NewQP(cfg Config, mem Memory) *QP {
	def(&cfg.MaxSendWR, qp.DefaultWR)
	def(&cfg.MaxRecvWR, qp.DefaultWR)
	def(&cfg.MaxSGE, qp.DefaultSGE)
	def(&cfg.PathMTU, 1024)
	def(&cfg.Window, DefaultWindow)
	def(&cfg.AckEvery, max(1, cfg.Window/4))
	return &QP{cfg: cfg, req: newRequester(cfg), resp: newResponder(cfg, mem)}
}

// StartSend moves the queue pair from RTR to RTS. It uses SQPSN, Timeout, RetryCnt, RNRRetry and
// MaxRdAtomic of cfg.
func (q *QP) StartSend(cfg *Config) {
	if !q.req.err {
		q.req.start(cfg)
	}
}

// PostSend queues a send request with its SGEs resolved to gather, which is copied. The opcode must
// be one that qp.CheckOpcode allows. In the error state the request completes at once with
// WRFlushErr. Errors wrap qp.ErrQueueFull, qp.ErrSGE, qp.ErrState or qp.ErrOpcode.
func (q *QP) PostSend(wr *qp.SendWR, gather [][]byte) error {
	if err := qp.CheckOpcode(wr.Opcode, false); err != nil {
		return err
	}
	return q.req.post(wr, gather)
}

// PostRecv queues a receive request; like PostSend.
func (q *QP) PostRecv(id uint64, scatter [][]byte) error { return q.resp.postRecv(id, scatter) }

// Handle processes a packet that arrived at now.
func (q *QP) Handle(in *In, now time.Duration) {
	if q.req.err {
		return
	}
	switch op := in.Opcode; {
	case op == rocev2.Acknowledge:
		q.req.handleAck(&in.Headers, now)
	case op == rocev2.CNP:
		q.req.stats.CNPs++
		q.req.cc.notified(now)
	case op.IsRequest():
		q.resp.handle(in, now)
	case op >= rocev2.ReadRespFirst && op <= rocev2.ReadRespOnly:
		q.resp.congestion(in, now)
		if !q.req.handleRead(in, now) {
			q.bad++
		}
	default:
		q.bad++
	}
	q.join()
}

// Tick processes the timers that have expired by now. Calling it early does nothing.
func (q *QP) Tick(now time.Duration) {
	if !q.req.err {
		q.req.tick(now)
		q.join()
	}
}

// join moves both halves to the error state when one of them has failed.
func (q *QP) join() {
	if q.req.err != q.resp.err {
		q.SetError()
	}
}

// Next fills out with the next packet to send at now, and reports whether there is one.
// Acknowledgements and CNPs come first; READ responses and requests alternate.
func (q *QP) Next(now time.Duration, out *Out) bool {
	out.Payload, out.PayloadLen, out.Retransmit = out.Payload[:0], 0, false
	if q.resp.next(out) {
		return true
	}
	if !q.resp.reading() {
		return q.req.next(now, out)
	}
	if q.turn = !q.turn; q.turn {
		return q.nextRead(now, out) || q.req.next(now, out)
	}
	return q.req.next(now, out) || q.nextRead(now, out)
}

// nextRead fills out with the next READ response. The rate limit of requests applies to it, too.
func (q *QP) nextRead(now time.Duration, out *Out) bool {
	if !q.req.cc.allow(now) {
		return false
	}
	if !q.resp.nextRead(out) {
		q.join()
		return q.resp.next(out)
	}
	q.req.cc.sent(out.Len()+out.PayloadLen, now)
	return true
}

// NextSendWC returns the next completion of the send queue.
func (q *QP) NextSendWC(wc *qp.WC) bool { return q.req.sq.nextWC(wc, q.cfg.LocalQPN) }

// NextRecvWC returns the next completion of the receive queue.
func (q *QP) NextRecvWC(wc *qp.WC) bool { return q.resp.rq.nextWC(wc, q.cfg.LocalQPN) }

// Deadline returns the time at which Tick or Next has something to do without new input, or Never.
func (q *QP) Deadline() time.Duration {
	switch {
	case q.resp.np.due || q.resp.replies():
		return 0
	case q.resp.reading():
		return min(q.req.cc.nextSend(), q.req.deadline())
	}
	return q.req.deadline()
}

// Failed reports whether the queue pair has moved to the error state by itself, with the status of
// the request that failed, and the asynchronous event to raise, or 0 if a completion reports the
// error.
func (q *QP) Failed() (qp.Status, qp.EventType, bool) {
	switch {
	case q.req.failed != qp.StatusSuccess:
		return q.req.failed, 0, true
	case q.resp.failed != qp.StatusSuccess:
		return q.resp.failed, q.resp.failedEvent, true
	}
	return qp.StatusSuccess, 0, false
}

// SetError moves the queue pair to the error state: all queued requests
// complete with WRFlushErr, packets are ignored.
func (q *QP) SetError() {
	q.req.stop()
	q.resp.stop()
}

// Drain sets whether new messages must not begin (SQD); messages that have begun continue.
func (q *QP) Drain(on bool) { q.req.drain = on }

// SetAccess sets the operations that the peer may perform.
func (q *QP) SetAccess(a qp.Access) { q.resp.cfg.Access = a }

// SetMinRNRTimer sets the timer code of the RNR NAKs that this side sends.
func (q *QP) SetMinRNRTimer(code uint8) { q.resp.cfg.MinRNRTimer = code }

// PSNs returns the PSN that the next new request packet will carry and the
// PSN that the responder expects.
func (q *QP) PSNs() (sq, rq rocev2.PSN) { return q.req.psn(q.req.max), q.resp.epsn }

// Stats returns the counters.
func (q *QP) Stats() Stats {
	return Stats{Requester: q.req.stats, Responder: q.resp.stats, Unexpected: q.bad}
}

// Unacknowledged returns the number of request packets that were sent and not acknowledged, and of
// those that were posted and not acknowledged.
func (q *QP) Unacknowledged() (sent, posted int) {
	return int(q.req.max - q.req.una), int(q.req.sq.end - q.req.una)
}

// A Flight is the sending state of a requester, in packets.
type Flight struct {
	Acked uint64 // in total
	Again uint64 // retransmitted, in total
	Open  int    // sent and not acknowledged
	Sent  int    // of Open, those not considered lost
	Ready int    // that could be sent now but for the limit
	Paced bool   // DCQCN limits the rate
}

// Flight returns the requester's sending state.
func (q *QP) Flight(now time.Duration) Flight {
	f := Flight{Acked: q.req.una, Again: q.req.stats.Retransmits}
	if !q.req.live {
		return f
	}
	f.Open, f.Sent, f.Paced = int(q.req.max-q.req.una), int(q.req.nxt-q.req.una), q.req.cc.active
	if now >= q.req.rnrUntil && q.req.cc.allow(now) {
		f.Ready = int(q.req.open())
	}
	return f
}

// Limit allows n more request packets, or response packets requested by READs, until the next call;
// at first there is no limit. A device uses it to share the network's capacity among its queue
// pairs.
func (q *QP) Limit(n int) { q.req.lim = q.req.nxt + uint64(n) }

// Expect sets how long acknowledgements may take. The ACK timer is extended accordingly, up to
// three times its timeout.
func (q *QP) Expect(d time.Duration) { q.req.expect = d }

// Holds reports whether an incomplete work request refers to memory for which in returns true. A
// device asks before it releases a memory region.
func (q *QP) Holds(in func(mem []byte) bool) bool {
	return q.req.sq.holds(in) || q.resp.rq.holds(in)
}
