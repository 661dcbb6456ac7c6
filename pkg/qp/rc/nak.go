package rc

import (
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// nak makes a NAK of the expected PSN the reply, and sends no further one until that PSN arrives.
func (p *Responder) nak(code rocev2.Syndrome) {
	p.reply, p.nakCode, p.nakSilent = replyNak, code, true
}

// fatal answers with a NAK, and moves the queue pair to the error state.
func (p *Responder) fatal(code rocev2.Syndrome, local qp.Status, event qp.EventType) {
	p.stats.NakFatal++
	p.nak(code)
	p.failed, p.failedEvent = local, event
	if local == qp.StatusLocLenErr {
		p.rq.fail(local)
	}
	p.stop()
}

func (p *Responder) invalid() {
	p.fatal(rocev2.NakInvalidRequest, qp.StatusRemInvReqErr, qp.EventQPRequestErr)
}

func (p *Responder) noAccess() {
	p.fatal(rocev2.NakRemoteAccess, qp.StatusRemAccessErr, qp.EventQPAccessErr)
}

// stop moves the responder to the error state. A pending fatal NAK is still sent, after the
// responses to earlier requests.
func (p *Responder) stop() {
	p.err = true
	p.rq.flush()
	if p.reply != replyNak || p.nakCode.IsRNR() || p.nakCode == rocev2.NakSequence {
		p.reply, p.answering = replyNone, len(p.reads)
	}
}
