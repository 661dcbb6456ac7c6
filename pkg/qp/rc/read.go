package rc

import (
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A READ has a position for each packet of its response (IBTA 1.2.1 §9.7.4.1.4). The requester asks
// for as many response packets as the window has room for, with as many READ requests as that
// needs, so the packets in flight are bounded as for SEND and WRITE. The responder treats each
// request as a separate READ. If responses are missing, the requester asks for the rest of that
// request's range, because a responder re-executes nothing else (§9.7.5.1.4).

// mayAsk reports whether a new READ request of w may be sent, with that much room in the window. It
// waits for half a window, to avoid small READs.
func (r *Requester) mayAsk(w *wqe, room uint64) bool {
	rest := w.first + uint64(w.packets) - r.nxt
	return len(r.asked) < cap(r.asked) && room >= min(rest, r.window.size/2)
}

// askUntil returns one past the last response that the READ request of w at nxt asks for.
func (r *Requester) askUntil(w *wqe) uint64 {
	for _, end := range r.asked { // of requests sent before
		if end > r.nxt {
			return end
		}
	}
	end := min(w.first+uint64(w.packets), r.una+r.window.size, r.lim)
	r.asked = append(r.asked, end)
	return end
}

// answered returns the position up to which an acknowledgement of all before pos counts: the first
// missing data of a READ.
func (r *Requester) answered(pos uint64) uint64 {
	for i := r.sq.done; i != r.sq.tail; i++ {
		w := r.sq.at(i)
		if w.first >= pos {
			break
		}
		if w.op == qp.OpRead {
			return max(w.first, r.una)
		}
	}
	return pos
}

// forgetAsked removes the READ requests whose responses all precede pos.
func (r *Requester) forgetAsked(pos uint64) {
	for len(r.asked) > 0 && r.asked[0] <= pos {
		r.asked = append(r.asked[:0], r.asked[1:]...)
	}
}

// A remoteRead is a READ request that the responder has executed or is executing.
type remoteRead struct {
	psn     rocev2.PSN
	reth    rocev2.RETH
	msn     uint32
	packets int
	start   int // first packet of the present response, 0 unless a part is repeated
	next    int // packet of the response to send next, packets if none
	most    int // the maximum that next has reached
}

// reading reports whether READ responses are to be sent.
func (p *Responder) reading() bool { return p.answering < len(p.reads) }

// read executes the READ request with the expected PSN. The responder remembers as many as the peer
// may have outstanding, to re-execute them. One that it forgets has been answered.
func (p *Responder) read(in *In) {
	if len(p.reads) == cap(p.reads) {
		if len(p.reads) == 0 || p.reads[0].most < p.reads[0].packets {
			p.invalid()
			return
		}
		p.reads = append(p.reads[:0], p.reads[1:]...)
		p.answering = max(0, p.answering-1)
		p.skipAnswered()
	}
	n := int(in.RETH.Length)
	if n > 0 { // else no key is checked (IBTA 1.2.1 C9-88)
		if _, ok := p.readable(in.RETH.RKey, in.RETH.VA, n); !ok {
			p.noAccess()
			return
		}
	}
	p.msn = (p.msn + 1) & rocev2.Mask24
	p.stats.Messages++
	e := remoteRead{psn: in.PSN, reth: in.RETH, msn: p.msn, packets: responses(n, p.cfg.PathMTU)}
	p.reads = append(p.reads, e)
	p.epsn = p.epsn.Add(e.packets)
	p.reply = replyNone // the responses acknowledge everything before
}

func (p *Responder) readable(rkey uint32, va uint64, n int) ([]byte, bool) {
	if p.cfg.Access&qp.AccessRemoteRead == 0 {
		return nil, false
	}
	return p.mem.Remote(rkey, va, n, qp.AccessRemoteRead)
}

// readAgain re-executes a remembered READ, or the rest of one (IBTA 1.2.1 §9.7.5.1.4). Responses
// that are still to be sent are not queued again.
func (p *Responder) readAgain(in *In) {
	for i := range p.reads {
		e := &p.reads[i]
		k := in.PSN.Sub(e.psn)
		off := k * p.cfg.PathMTU
		rest := rocev2.RETH{VA: e.reth.VA + uint64(off), RKey: e.reth.RKey, Length: e.reth.Length - uint32(off)}
		if k >= 0 && k < e.next && in.RETH == rest {
			e.start, e.next = k, k
			p.answering = min(p.answering, i)
		}
	}
}

// nextRead fills out with the next READ response. It returns false if the memory may not be read
// any more; then the answer is a fatal NAK.
func (p *Responder) nextRead(out *Out) bool {
	e := &p.reads[p.answering]
	off := e.next * p.cfg.PathMTU
	n := min(p.cfg.PathMTU, int(e.reth.Length)-off)
	if n > 0 {
		data, ok := p.readable(e.reth.RKey, e.reth.VA+uint64(off), n)
		if !ok {
			p.answering = len(p.reads)
			p.epsn = e.psn.Add(e.next) // requests after it do not count
			p.noAccess()
			return false
		}
		out.Payload = append(out.Payload, data)
	}
	first, last := e.next == e.start, e.next == e.packets-1
	op := rocev2.ReadRespMiddle
	switch {
	case first && last:
		op = rocev2.ReadRespOnly
	case first:
		op = rocev2.ReadRespFirst
	case last:
		op = rocev2.ReadRespLast
	}
	out.BTH = rocev2.BTH{Opcode: op, MigReq: true, Pad: uint8(-n & 3), PKey: rocev2.DefaultPKey,
		DestQP: p.cfg.RemoteQPN, PSN: e.psn.Add(e.next)}
	out.AETH = rocev2.AETH{Syndrome: rocev2.AckNoLimit, MSN: e.msn}
	out.PayloadLen = n
	out.Retransmit = e.next < e.most
	p.stats.ResponsesSent++
	e.next++
	e.most = max(e.most, e.next)
	p.skipAnswered()
	return true
}

func (p *Responder) skipAnswered() {
	for p.reading() && p.reads[p.answering].next == p.reads[p.answering].packets {
		p.answering++
	}
}
