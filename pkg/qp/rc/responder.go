package rc

import (
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Responder is the receiving half of a queue pair: it executes each request packet exactly once
// and in PSN order, and responds according to IBTA 1.2.1 §9.7.5.1 and §9.9.3. All its
// acknowledgements are cumulative, so at most one is pending: one packet answers everything that
// arrives between two calls of next.
type Responder struct {
	cfg Config
	mem Memory
	err bool

	epsn rocev2.PSN // expected PSN
	msn  uint32     // messages completed, modulo 2^24

	msg message // the message in progress
	rq  recvQueue

	// reply is the pending acknowledgement. A sequence or RNR NAK also acknowledges everything
	// before it, so it replaces an ACK.
	reply     replyKind
	nakCode   rocev2.Syndrome // for replyNak
	nakSilent bool            // a NAK for epsn is pending or sent: no further one until epsn arrives (one NAK per gap)
	reads     []remoteRead    // the latest READs, oldest first
	answering int             // index of the oldest of them with unsent responses
	ahead     rocev2.PSN      // highest out-of-sequence PSN dropped

	np    notificationPoint
	stats ResponderStats

	failed      qp.Status
	failedEvent qp.EventType
}

type replyKind uint8

const (
	replyNone replyKind = iota
	replyAck
	replyNak
)

// A message is the reassembly state between a First and a Last packet.
type message struct {
	kind  messageKind
	done  int // payload bytes placed so far
	total int // WRITE: length of the whole DMA
	rkey  uint32
	va    uint64
}

type messageKind uint8

const (
	noMessage messageKind = iota
	sendMessage
	writeMessage
)

// ResponderStats are counters of a Responder since it was created.
type ResponderStats struct {
	Packets        uint64 // request packets that arrived
	Bytes          uint64 // payload bytes placed
	Messages       uint64
	Duplicates     uint64 // PSNs executed before: re-acknowledged, and only READs executed
	OutOfSequence  uint64 // PSNs ahead of the expected one: dropped
	AcksSent       uint64
	ResponsesSent  uint64 // READ responses
	NakSequence    uint64
	NakRNR         uint64
	NakFatal       uint64
	CNPsSent       uint64
	CongestionSeen uint64 // packets marked CE
}

func newResponder(cfg Config, mem Memory) Responder {
	p := Responder{cfg: cfg, mem: mem, epsn: cfg.RQPSN & rocev2.Mask24, rq: recvQueue{newWorkQueue(cfg.MaxRecvWR, cfg.MaxSGE)},
		reads: make([]remoteRead, 0, cfg.MaxDestRdAtomic)}
	p.np.init(cfg.CC)
	return p
}

func (p *Responder) postRecv(id uint64, scatter [][]byte) error {
	if err := p.rq.push(id, scatter); err != nil {
		return err
	}
	if p.err {
		p.rq.flush()
	}
	return nil
}

// handle processes one request packet.
func (p *Responder) handle(in *In, now time.Duration) {
	p.stats.Packets++
	p.congestion(in, now)
	switch d := in.PSN.Sub(p.epsn); {
	case d < 0:
		p.duplicate(in)
	case d > 0:
		p.stats.OutOfSequence++
		if !p.nakSilent {
			p.stats.NakSequence++
			p.nak(rocev2.NakSequence)
			p.ahead = in.PSN
		} else if in.PSN.After(p.ahead) {
			p.ahead = in.PSN
		}
	default:
		p.nakSilent = false
		unsent := p.reply == replyNak // and no longer correct for this PSN
		if unsent {
			p.reply = replyAck
		}
		p.expected(in)
		if unsent && p.nakCode == rocev2.NakSequence && !p.err && !p.ahead.Before(p.epsn) {
			// Reordered, not lost: but the packets ahead of it were dropped, so they are missing
			// now.
			p.nak(rocev2.NakSequence)
		}
	}
}

func (p *Responder) congestion(in *In, now time.Duration) {
	if in.CE {
		p.stats.CongestionSeen++
		p.np.marked(now)
	}
}

// duplicate handles a request that was executed before. SEND and WRITE are acknowledged again, with
// the newest state, because the requester may have lost that acknowledgement (IBTA 1.2.1 C9-105). A
// READ is executed again. Atomics, which are never executed here, are dropped.
func (p *Responder) duplicate(in *In) {
	p.stats.Duplicates++
	if in.Opcode == rocev2.ReadRequest {
		p.readAgain(in)
	} else if p.reply == replyNone && (in.Opcode.IsSend() || in.Opcode.IsWrite()) {
		p.reply = replyAck
	}
}

// expected executes the packet with the expected PSN.
func (p *Responder) expected(in *In) {
	if !p.wellFormed(in) {
		p.invalid()
		return
	}
	op := in.Opcode
	if op == rocev2.ReadRequest {
		p.read(in)
		return
	}
	if p.needsRecv(op) && !p.rq.ready() {
		p.stats.NakRNR++
		p.nak(rocev2.RNRSyndrome(p.cfg.MinRNRTimer))
		return
	}
	if op.IsFirst() {
		p.msg = message{kind: sendMessage}
		if op.IsWrite() {
			p.msg = message{kind: writeMessage, total: int(in.RETH.Length), rkey: in.RETH.RKey, va: in.RETH.VA}
		}
	}
	if !p.placePayload(in) {
		return
	}
	p.msg.done += len(in.Payload)
	p.stats.Bytes += uint64(len(in.Payload))
	p.epsn = p.epsn.Add(1)
	if in.AckReq {
		p.reply = replyAck
	}
	if op.IsLast() {
		p.complete(in)
	}
}

// wellFormed checks opcode sequence and payload length (IBTA 1.2.1 §9.7.4.1.2
// and §9.7.4.1.6).
func (p *Responder) wellFormed(in *In) bool {
	op, n := in.Opcode, len(in.Payload)
	if !rcRequest(op) || op.IsFirst() != (p.msg.kind == noMessage) {
		return false
	}
	if !op.IsFirst() && op.IsWrite() != (p.msg.kind == writeMessage) {
		return false
	}
	switch {
	case op == rocev2.ReadRequest:
		return in.RETH.Length <= qp.MaxMessage
	case n > p.cfg.PathMTU, !op.IsLast() && n != p.cfg.PathMTU, !op.IsFirst() && n == 0:
		return false
	case !op.IsWrite():
		return p.msg.done+n <= qp.MaxMessage
	}
	total, done := p.msg.total, p.msg.done
	if op.IsFirst() {
		total, done = int(in.RETH.Length), 0
	}
	if op.IsLast() {
		return done+n == total
	}
	return done+n < total && total <= qp.MaxMessage
}

// rcRequest reports whether op is a request that this responder executes.
func rcRequest(op rocev2.Opcode) bool { return op <= rocev2.ReadRequest }

// needsRecv reports whether the packet consumes a receive request: the first of a SEND, or the last
// of a WRITE with immediate.
func (p *Responder) needsRecv(op rocev2.Opcode) bool {
	if op.IsWrite() {
		return op.IsLast() && op.HasImm()
	}
	return op.IsFirst()
}

// placePayload writes the payload to memory. If that is not allowed, it answers with the fatal NAK
// and returns false.
func (p *Responder) placePayload(in *In) bool {
	if p.msg.kind == sendMessage {
		if !scatter(p.rq.head().mem, p.msg.done, in.Payload) {
			p.fatal(rocev2.NakInvalidRequest, qp.StatusLocLenErr, qp.EventQPRequestErr)
			return false
		}
		return true
	}
	if p.msg.total == 0 {
		return true // no memory is accessed, so no key is checked (IBTA 1.2.1 C9-88)
	}
	// The first packet checks the whole range before anything is written. Each packet resolves its
	// own part again, because the region may be deregistered in the middle of a message.
	ok := p.cfg.Access&qp.AccessRemoteWrite != 0
	if ok && in.Opcode.IsFirst() && p.msg.total > len(in.Payload) {
		_, ok = p.mem.Remote(p.msg.rkey, p.msg.va, p.msg.total, qp.AccessRemoteWrite)
	}
	var dst []byte
	if ok {
		dst, ok = p.mem.Remote(p.msg.rkey, p.msg.va+uint64(p.msg.done), len(in.Payload), qp.AccessRemoteWrite)
	}
	if !ok {
		p.noAccess()
		return false
	}
	copy(dst, in.Payload)
	return true
}

// complete ends the message whose last packet is in.
func (p *Responder) complete(in *In) {
	op := in.Opcode
	if !op.IsWrite() || op.HasImm() {
		w := p.rq.head()
		w.length = uint32(p.msg.done)
		w.opcode = qp.WCRecv
		if op.IsWrite() {
			w.opcode = qp.WCRecvWriteImm
		}
		w.imm, w.hasImm = in.Imm, op.HasImm()
		p.rq.complete()
	}
	p.msn = (p.msn + 1) & rocev2.Mask24
	p.msg = message{}
	p.stats.Messages++
}

// replies reports whether an acknowledgement is to be sent now. It would acknowledge READs, too, so
// their responses go first.
func (p *Responder) replies() bool { return p.reply != replyNone && !p.reading() }

// next fills out with the pending acknowledgement or CNP.
func (p *Responder) next(out *Out) bool {
	if p.np.take() {
		p.stats.CNPsSent++
		out.BTH = rocev2.BTH{Opcode: rocev2.CNP, PKey: rocev2.DefaultPKey, BECN: true, DestQP: p.cfg.RemoteQPN}
		return true
	}
	if !p.replies() {
		return false
	}
	out.BTH = rocev2.BTH{Opcode: rocev2.Acknowledge, MigReq: true, PKey: rocev2.DefaultPKey,
		DestQP: p.cfg.RemoteQPN, PSN: p.epsn.Add(-1)}
	out.AETH = rocev2.AETH{Syndrome: rocev2.AckNoLimit, MSN: p.msn}
	if p.reply == replyNak {
		out.PSN, out.AETH.Syndrome = p.epsn, p.nakCode
	} else {
		p.stats.AcksSent++
	}
	p.reply = replyNone
	return true
}

// A recvQueue holds the receive requests. The one at done is in use.
type recvQueue struct{ workQueue }

func (q *recvQueue) push(id uint64, scatter [][]byte) error {
	w, err := q.free(scatter, "receive")
	if err != nil {
		return err
	}
	*w = wqe{id: id, mem: append(w.mem[:0], scatter...)}
	q.tail++
	return nil
}

func (q *recvQueue) ready() bool { return q.done != q.tail }
func (q *recvQueue) head() *wqe  { return q.at(q.done) }
func (q *recvQueue) complete()   { q.done++ }

func (q *recvQueue) nextWC(wc *qp.WC, local rocev2.QPN) bool {
	if q.reported == q.done {
		return false
	}
	w := q.at(q.reported)
	q.reported++
	clear(w.mem)
	*wc = qp.WC{ID: w.id, Status: w.status, Opcode: w.opcode, QPN: local, ByteLen: w.length, Imm: w.imm, HasImm: w.hasImm}
	if w.status != qp.StatusSuccess {
		wc.Opcode = qp.WCRecv
	}
	return true
}
