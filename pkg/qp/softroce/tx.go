package softroce

import (
	"errors"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// batchSize is how many packets are handed to the link, or taken from it, at a
// time.
const batchSize = 64

// A txBatch is what building a batch of packets needs.
type txBatch struct {
	tx    [batchSize]link.Tx
	parts [batchSize][MaxSGE + 2][]byte
	heads [batchSize][rocev2.BTHLen + rocev2.RETHLen + rocev2.ImmDtLen]byte
	out   rc.Out
	wc    qp.WC
}

func newTxBatch() *txBatch {
	b := new(txBatch)
	b.out.Payload = make([][]byte, 0, MaxSGE)
	return b
}

var zeros [4]byte

// pump takes out of the state machines what an input has put there:
// completions first, since somebody may be waiting for them, then packets. It
// sends under the queue pair's lock: the memory of a request must not go back
// to the application while the link reads it.
func (q *QP) pump(now time.Duration) {
	d := q.dev
	b := d.batches.Get().(*txBatch)
	for q.rc.NextRecvWC(&b.wc) {
		q.complete(q.recvCQ, &b.wc)
	}
	for q.rc.NextSendWC(&b.wc) {
		q.complete(q.sendCQ, &b.wc)
	}
	for {
		n := q.fill(b, now)
		if n == 0 {
			break
		}
		if err := d.link.Send(b.tx[:n]); err != nil {
			d.sendFailed(err)
		}
		if n < batchSize {
			break
		}
	}
	d.batches.Put(b)
	if q.state != qp.Error {
		q.checkFailed()
	}
	q.arm()
}

// fill builds the packets that may be sent now and returns how many.
func (q *QP) fill(b *txBatch, now time.Duration) int {
	var n, bytes, again int
	out := &b.out
	for n < batchSize && q.rc.Next(now, out) {
		head := out.AppendTo(b.heads[n][:0])
		parts := append(b.parts[n][:0], head)
		parts = append(parts, out.Payload...)
		if out.Pad > 0 {
			parts = append(parts, zeros[:out.Pad])
		}
		tos := q.attr.DSCP << 2
		if out.Opcode.IsRequest() && !q.cfg.CC.Disable {
			tos |= ecnECT0
		}
		size := len(head) + out.PayloadLen + int(out.Pad)
		b.tx[n] = link.Tx{Dst: q.attr.DestAddr, TOS: tos, Flow: q.flow, Parts: parts, Len: size}
		n++
		bytes += out.PayloadLen
		if out.Retransmit {
			again++
		}
	}
	if n > 0 {
		c := &q.dev.counters
		c.txPackets.Add(uint64(n))
		c.txBytes.Add(uint64(bytes))
		if again > 0 {
			c.txRetransmits.Add(uint64(again))
		}
	}
	return n
}

// The ECN field of the ToS byte (RFC 3168).
const (
	ecnECT0 = 2
	ecnCE   = 3
)

// sendFailed counts what the link could not send. To the transport it is a
// lost packet.
func (d *Device) sendFailed(err error) {
	if !d.closing() {
		d.counters.txErrors.Add(1)
	}
	var one *link.TxError
	if !errors.As(err, &one) {
		d.linkFailed(err)
	}
}

// checkFailed notices that the state machines went to the error state.
func (q *QP) checkFailed() {
	status, event, failed := q.rc.Failed()
	if !failed {
		return
	}
	q.state = qp.Error
	if event != 0 && !q.told {
		q.told = true
		q.dev.event(event, q.qpn, status.Err())
	}
}
