package rc

import (
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Requester is the sending half of a queue pair. It cuts messages into packets, keeps at most a
// window of them unacknowledged, goes back to the oldest if needed (go-back-N, IBTA 1.2.1 §9.7.5),
// and completes work requests in order as acknowledgements cover them.
//
// Internally, packets are numbered by a 64-bit position that never wraps; the PSN on the wire is
// the initial PSN plus the position, modulo 2^24. A received PSN means the position nearest to the
// oldest unacknowledged one. That is unambiguous, because at most a window of packets is in flight.
type Requester struct {
	cfg   Config
	live  bool // RTS or SQD
	drain bool // SQD: begin no new message
	err   bool // error state: everything posted is flushed

	sq sendQueue
	positions
	window lossWindow
	reads
	timers
	rtt rttMeter

	nakUna uint64        // una at the last go-back for a sequence NAK, noNak if none
	nakAt  time.Duration // time of that go-back

	cc    reactionPoint
	stats RequesterStats

	failed qp.Status
}

// positions are of packets; una ≤ nxt ≤ max.
type positions struct {
	una uint64 // oldest unacknowledged
	nxt uint64 // next to send
	max uint64 // one past the highest ever sent
	cur uint32 // sq index of the request that nxt lies in, if nxt < sq.end
	lim uint64 // nxt stays below it; see QP.Limit
}

// reads are the outstanding READ requests.
type reads struct {
	asked    []uint64 // for each, one past the last position of its responses
	executed uint64   // one past what ACKs have acknowledged; data of READs before it may be missing
}

// timers say when packets are sent again.
type timers struct {
	retries    uint8         // retries left
	rnrRetries uint8         // retries left, unless cfg.RNRRetry is rnrForever
	expect     time.Duration // see QP.Expect
	ackBy      time.Duration // when the local ACK timer expires, Never if stopped
	deferred   time.Duration // when the last deferred request was sent
	askBy      time.Duration // when to ask for an ACK of deferred requests, Never if one was asked for behind them
	rnrUntil   time.Duration // end of the back-off after an RNR NAK, 0 if none
	probe      bool          // ask for an ACK in the next packet
	silent     bool          // the timer has expired, and nothing was acknowledged since
}

const (
	rnrForever = 7 // IBTA 1.2.1 §9.7.5.2.8: an RNR retry count of 7 means no limit
	noNak      = ^uint64(0)
	noLimit    = ^uint64(0)
)

// RequesterStats are counters of a Requester since it was created.
type RequesterStats struct {
	Packets     uint64 // request packets sent, retransmissions included
	Retransmits uint64 // of those, repeated PSNs
	Timeouts    uint64 // local ACK timer expiries
	Acks        uint64 // ACKs accepted
	NakSequence uint64
	NakRNR      uint64
	NakFatal    uint64
	StaleAcks   uint64 // acknowledgements of positions outside the window: ignored
	BadAcks     uint64 // reserved syndromes and responses that match no request: ignored
	Responses   uint64 // READ responses accepted
	CNPs        uint64
}

func newRequester(cfg Config) Requester {
	r := Requester{cfg: cfg, sq: sendQueue{workQueue: newWorkQueue(cfg.MaxSendWR, cfg.MaxSGE)}, window: newLossWindow(cfg.Window),
		positions: positions{lim: noLimit}, timers: timers{ackBy: Never, askBy: Never}, nakUna: noNak}
	r.cc.init(cfg.CC)
	return r
}

// start moves the requester to RTS.
func (r *Requester) start(cfg *Config) {
	r.cfg.SQPSN, r.cfg.Timeout = cfg.SQPSN&rocev2.Mask24, cfg.Timeout
	r.cfg.RetryCnt, r.cfg.RNRRetry = cfg.RetryCnt, cfg.RNRRetry
	r.retries, r.rnrRetries = cfg.RetryCnt, cfg.RNRRetry
	if r.asked == nil {
		r.asked = make([]uint64, 0, cfg.MaxRdAtomic)
	}
	r.live = true
}

func (r *Requester) psn(pos uint64) rocev2.PSN { return r.cfg.SQPSN.Add(int(pos & rocev2.Mask24)) }

// post queues a send request.
func (r *Requester) post(wr *qp.SendWR, gather [][]byte) error {
	if !r.live && !r.err {
		return fmt.Errorf("%w: send posted before RTS", qp.ErrState)
	}
	if wr.Opcode == qp.OpRead && cap(r.asked) == 0 {
		return fmt.Errorf("%w: %v: MaxRdAtomic of the queue pair is 0", qp.ErrOpcode, wr.Opcode)
	}
	if err := r.sq.push(wr, gather, r.cfg.PathMTU, r.cfg.SignalAll); err != nil {
		return err
	}
	if r.err {
		r.sq.flush()
	} else if r.silent && r.nxt-r.una >= r.window.size {
		// The window has no room for the request. The caller may know that the path works again, so
		// the oldest packet is sent again as a probe; the timer continues.
		r.probe = true
		r.rewind()
	}
	return nil
}

// next fills out with the next request packet to send at now.
func (r *Requester) next(now time.Duration, out *Out) bool {
	if !r.sendable() || now < r.rnrUntil || !r.cc.allow(now) {
		return false
	}
	w := r.sq.at(r.cur)
	if w.op == qp.OpRead {
		r.request(w, now, out)
		return true
	}
	k := int(r.nxt - w.first)
	last := k == w.packets-1
	off := k * r.cfg.PathMTU
	n := min(r.cfg.PathMTU, int(w.length)-off)

	out.BTH = rocev2.BTH{
		Opcode:    w.sendOpcode(k == 0, last),
		Solicited: last && w.flags&qp.FlagSolicited != 0 && (!w.op.IsWrite() || w.op.HasImm()),
		MigReq:    true,
		Pad:       uint8(-n & 3),
		PKey:      rocev2.DefaultPKey,
		DestQP:    r.cfg.RemoteQPN,
		AckReq:    last && !r.defers(w, now) || r.wantAck(k),
		PSN:       r.psn(r.nxt),
	}
	out.RETH = rocev2.RETH{VA: w.remoteAddr, RKey: w.rkey, Length: w.length}
	out.Imm = w.imm
	out.Payload = sliceGather(out.Payload[:0], w.mem, off, n)
	out.PayloadLen = n
	out.Retransmit = r.nxt < r.max
	if last && w.flags&qp.FlagDeferred != 0 && !out.Retransmit {
		r.deferred = now
	}

	r.sent(now, out, 1, last)
	return true
}

// sendable reports whether a packet could be sent, apart from the RNR back-off and the rate
// limiter.
func (r *Requester) sendable() bool {
	return r.nxt < r.lim && r.open() > 0
}

// open returns how many packets the queue and the window allow to send.
func (r *Requester) open() uint64 {
	if !r.live || r.nxt-r.una >= r.window.size {
		return 0
	}
	room := min(r.sq.end-r.nxt, r.una+r.window.size-r.nxt)
	if r.nxt >= r.max {
		if w := r.sq.at(r.cur); r.nxt == w.first && (r.drain || w.flags&qp.FlagFence != 0 && len(r.asked) > 0) ||
			w.op == qp.OpRead && !r.mayAsk(w, room) {
			return 0
		}
	}
	return room
}

// defers says whether the end of a request asks for no acknowledgement. It asks after a pause, as
// the next request may be as late, when it is sent again, and where no timer would.
func (r *Requester) defers(w *wqe, now time.Duration) bool {
	return w.flags&qp.FlagDeferred != 0 && r.nxt >= r.max && now-r.deferred < qp.AckTimeout(r.cfg.Timeout)/askShare
}

// wantAck says whether packet k of a message asks for an acknowledgement, besides the last packet.
// It does every AckEvery packets, so that the window advances smoothly; when it fills the window or
// is the last that the limit allows, because nothing else would advance them; and when it is the
// first after a timeout, to learn early what has arrived.
func (r *Requester) wantAck(k int) bool {
	return r.probe || k%r.cfg.AckEvery == r.cfg.AckEvery-1 ||
		r.nxt-r.una == r.window.size-1 || r.nxt == r.lim-1 && r.lim < r.sq.end
}

// sent records that the packet in out is sent now, and accounts for that many positions.
func (r *Requester) sent(now time.Duration, out *Out, positions uint64, last bool) {
	r.probe = false
	r.stats.Packets++
	if out.Retransmit {
		r.stats.Retransmits++
	} else if out.AckReq {
		r.rtt.begin(r.nxt, now)
	}
	r.nxt += positions
	if last {
		r.cur++
	}
	r.max = max(r.max, r.nxt)
	if r.ackBy == Never {
		r.armTimer(now)
	}
	if out.AckReq {
		r.askBy = Never
	} else if last && r.askBy == Never {
		r.askBy = now + qp.AckTimeout(r.cfg.Timeout)/askShare
	}
	r.cc.sent(out.Len()+out.PayloadLen, now)
}

// request fills out with the READ request of w at nxt.
func (r *Requester) request(w *wqe, now time.Duration, out *Out) {
	end := r.askUntil(w)
	off := (r.nxt - w.first) * uint64(r.cfg.PathMTU)
	n := (end - r.nxt) * uint64(r.cfg.PathMTU)
	out.BTH = rocev2.BTH{Opcode: rocev2.ReadRequest, MigReq: true, PKey: rocev2.DefaultPKey, DestQP: r.cfg.RemoteQPN,
		AckReq: true, PSN: r.psn(r.nxt)}
	out.RETH = rocev2.RETH{VA: w.remoteAddr + off, RKey: w.rkey, Length: uint32(min(n, uint64(w.length)-off))}
	out.Retransmit = r.nxt < r.max
	r.sent(now, out, end-r.nxt, end == w.first+uint64(w.packets))
}

// maxPatience bounds the ACK timer, in multiples of the local ACK timeout. IBTA 1.2.1 §9.7.6.1.3
// allows four.
const maxPatience = 3

// armTimer starts the ACK timer.
func (r *Requester) armTimer(now time.Duration) {
	r.ackBy = Never
	if r.una == r.max {
		r.askBy = Never
	} else if t := qp.AckTimeout(r.cfg.Timeout); t != 0 {
		r.ackBy = now + min(max(t, r.expect), maxPatience*t)
	}
}

// handleAck handles an ACKNOWLEDGE packet: ACK, RNR NAK or NAK.
func (r *Requester) handleAck(h *rocev2.Headers, now time.Duration) {
	s := h.AETH.Syndrome
	// pos is the position of the PSN. An ACK may have any sent position from una−1 (a repeated ACK)
	// on. A NAK has the position to send next, so one that was sent and not acknowledged.
	pos := r.una + uint64(h.PSN.Sub(r.psn(r.una)))
	switch {
	case s.IsAck():
		acked := pos + 1
		if acked < r.una || acked > r.max {
			r.stats.StaleAcks++
			return
		}
		r.stats.Acks++
		r.executed = max(r.executed, acked)
		end := r.answered(acked)
		r.progress(end, now)
		if end < acked {
			r.impliedNak(now)
		}
		return
	case pos < r.una || pos >= r.max:
		r.stats.StaleAcks++
		return
	}
	switch {
	case s.IsRNR():
		r.stats.NakRNR++
		r.progress(r.answered(pos), now)
		r.backOff(rocev2.RNRTimer(s.Value()), now)
	case s == rocev2.NakSequence:
		r.stats.NakSequence++
		r.progress(r.answered(pos), now)
		r.sequenceNak(now)
	case s == rocev2.NakInvalidRequest:
		r.fatalNak(pos, qp.StatusRemInvReqErr, now)
	case s == rocev2.NakRemoteAccess:
		r.fatalNak(pos, qp.StatusRemAccessErr, now)
	case s == rocev2.NakRemoteOperation:
		r.fatalNak(pos, qp.StatusRemOpErr, now)
	default:
		r.stats.BadAcks++
	}
}

// progress acknowledges every position before pos.
func (r *Requester) progress(pos uint64, now time.Duration) {
	if pos <= r.una {
		return
	}
	r.window.acked(pos - r.una)
	r.una = pos
	r.rtt.acked(pos, now)
	r.sq.acknowledge(pos)
	r.forgetAsked(pos)
	if r.nxt < pos {
		// An acknowledgement of the first transmission has overtaken the retransmission.
		r.seek(pos)
	}
	r.retries, r.rnrRetries = r.cfg.RetryCnt, r.cfg.RNRRetry
	r.silent = false
	r.nakUna = noNak
	r.rnrUntil = 0
	r.armTimer(now)
}

// seek makes pos the next position to send.
func (r *Requester) seek(pos uint64) {
	r.nxt = pos
	r.cur = r.sq.find(pos)
}

// rewind makes the oldest unacknowledged position the next to send.
func (r *Requester) rewind() {
	r.seek(r.una)
	r.rtt.cancel()
}

// goBack restarts sending at the oldest unacknowledged position.
func (r *Requester) goBack(now time.Duration) {
	r.rewind()
	r.armTimer(now)
}

// sequenceNak goes back. The first NAK at a position is charged to the retry count (IBTA 1.2.1
// §9.9.2.4.1). A responder sends one NAK per gap, so further ones at the same position are copies,
// or come from other members of a multicast group that lost the same packet. Those within one round
// trip of the go-back carry no new information and are ignored. Later ones cause another go-back,
// which is not charged and does not restart the ACK timer. So the timer bounds the effect of a
// responder that repeats its NAKs.
func (r *Requester) sequenceNak(now time.Duration) {
	switch {
	case r.nxt == r.una:
	case r.nakUna != r.una:
		if r.charge(&r.retries, qp.StatusRetryExcErr) {
			r.nakUna, r.nakAt = r.una, now
			r.window.lost(r.nxt - r.una)
			r.goBack(now)
		}
	case now-r.nakAt > r.rtt.smoothed:
		r.nakAt = now
		r.rewind()
	}
}

// impliedNak handles the loss of READ data that the acknowledgement of a later request reveals
// (IBTA 1.2.1 §9.7.5.2.7). Only the first one at a position causes a go-back; after that the ACK
// timer does.
func (r *Requester) impliedNak(now time.Duration) {
	if r.nakUna != r.una {
		r.sequenceNak(now)
	}
}

// handleRead handles a READ response, and returns false if it matches no request. It ignores
// whether the response is First, Middle, Last or Only, because responders differ in that after a
// repeated request; the PSN gives the data's position.
func (r *Requester) handleRead(in *In, now time.Duration) bool {
	ahead := in.PSN.Sub(r.psn(r.una))
	pos := r.una + uint64(ahead)
	switch {
	case ahead < 0:
		r.stats.StaleAcks++
		return true
	case pos >= r.max:
		return false
	case in.Opcode.HasAETH() && !in.AETH.Syndrome.IsAck():
		r.stats.BadAcks++
		return true
	}
	w := r.sq.at(r.sq.find(pos))
	if w.op != qp.OpRead {
		return false
	}
	end := r.answered(pos)
	r.progress(end, now)
	if end < pos {
		r.impliedNak(now)
		return true
	}
	off := int(pos-w.first) * r.cfg.PathMTU
	if len(in.Payload) != min(r.cfg.PathMTU, int(w.length)-off) {
		r.fail(qp.StatusBadRespErr)
		return true
	}
	scatter(w.mem, off, in.Payload)
	r.stats.Responses++
	r.progress(pos+1, now)
	r.progress(r.answered(r.executed), now) // for an ACK that has overtaken this response
	return true
}

// backOff pauses for an RNR NAK of the packet at una. Several members of a multicast group may be
// not ready at once. During the pause, further RNR NAKs can only lengthen it, and only the first is
// charged.
func (r *Requester) backOff(d, now time.Duration) {
	if now < r.rnrUntil {
		r.rnrUntil = max(r.rnrUntil, now+d)
		return
	}
	if r.cfg.RNRRetry == rnrForever || r.charge(&r.rnrRetries, qp.StatusRNRRetryExcErr) {
		r.rewind()
		r.rnrUntil = now + d
		r.ackBy = Never // the ACK timer stops; the next packet starts it
	}
}

// charge uses one of the retries left. If there are none, it fails the request and returns false.
func (r *Requester) charge(left *uint8, end qp.Status) bool {
	if *left == 0 {
		r.fail(end)
		return false
	}
	*left--
	return true
}

func (r *Requester) fatalNak(pos uint64, status qp.Status, now time.Duration) {
	r.stats.NakFatal++
	r.progress(r.answered(pos), now)
	r.fail(status)
}

// askShare is the fraction of the local ACK timeout after which deferred requests ask for an ACK.
const askShare = 8

// ask sends the last packet again, and it asks for an ACK: that of a duplicate acknowledges all before it. If packets were lost, it brings
// the NAK.
func (r *Requester) ask() {
	r.askBy = Never
	if r.probe = true; r.nxt == r.max {
		r.seek(r.max - 1)
	}
}

// tick processes the local ACK timer, and the time to ask for ACKs.
func (r *Requester) tick(now time.Duration) {
	if now >= r.askBy {
		r.ask()
	}
	if now < r.ackBy {
		return
	}
	if r.nxt == r.una { // went back, but the rate limiter has not allowed a packet yet
		r.armTimer(now)
		return
	}
	r.stats.Timeouts++
	if r.charge(&r.retries, qp.StatusRetryExcErr) {
		r.probe, r.silent = true, true
		r.window.lost(r.nxt - r.una)
		r.goBack(now)
	}
}

// fail completes the oldest request with status and flushes the rest.
func (r *Requester) fail(status qp.Status) {
	r.failed = status
	r.sq.fail(status)
	r.stop()
}

// stop moves the requester to the error state.
func (r *Requester) stop() {
	r.sq.flush()
	r.live, r.err = false, true
	r.ackBy, r.askBy = Never, Never
}

// deadline returns when tick or next has something to do without new input.
func (r *Requester) deadline() time.Duration {
	d := min(r.ackBy, r.askBy)
	if r.sendable() {
		d = min(d, max(r.rnrUntil, r.cc.nextSend()))
	}
	return d
}

// leastWindow is the minimum window after losses; it is large enough for sequence NAKs to occur.
const leastWindow = 4
