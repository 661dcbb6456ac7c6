package softroce

import (
	"errors"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// batchSize is the maximum number of packets passed to or from the link at a time.
const batchSize = 64

// A txBatch has the buffers for building a batch of packets.
type txBatch struct {
	tx    [batchSize]link.Tx
	parts [batchSize][MaxSGE + 2][]byte
	heads [batchSize][rocev2.BTHLen + rocev2.RETHLen + rocev2.ImmDtLen]byte
	out   rc.Out
	reads []byte // copies of READ responses' data
}

func newTxBatch() *txBatch {
	b := new(txBatch)
	b.out.Payload = make([][]byte, 0, MaxSGE)
	return b
}

var zeros [4]byte

// maxBatches is the maximum number of batches per call of pump, so that no goroutine keeps
// transmitting for others. The timer goroutine sends the rest.
const maxBatches = 4

// pump processes the outputs of the state machines: completions first, because a goroutine may be
// waiting for them, then packets.
//
// It releases the queue pair's lock while the link sends, so that meanwhile
// other goroutines can post requests and handle acknowledgements; they leave
// the packets to the goroutine that is sending. Requests do not complete
// meanwhile, because the link reads their memory.
func (q *QP) pump(now time.Duration) {
	if q.sending || q.hold > 0 {
		return
	}
	d := q.dev
	b := d.batches.Get().(*txBatch)
	more := true // may be sent, as far as is known
	for range maxBatches {
		q.drain()
		n := q.fill(b, now)
		if more = n > 0; !more {
			break
		}
		q.sending = true
		q.mu.Unlock()
		if err := d.link.Send(b.tx[:n]); err != nil {
			d.sendFailed(err)
		}
		now = d.now()
		q.mu.Lock()
		q.sending = false
		if q.hold > 0 {
			q.idle.Broadcast()
			break
		}
	}
	d.batches.Put(b)
	q.drain()
	if more {
		q.arm(q.resume)
	} else {
		q.arm(q.rc.Deadline())
	}
}

// stopSending waits until no goroutine sends. The lock, which the caller holds,
// is released while it waits. If the queue pair stays in use, the caller must
// call pump afterward.
func (q *QP) stopSending() {
	q.hold++
	for q.sending {
		q.idle.Wait()
	}
	q.hold--
}

// drain moves completions to their queues and reports whether that woke a
// goroutine. When a goroutine sees a failed
// completion, the queue pair is already in the error state.
func (q *QP) drain() (woken bool) {
	if q.rc == nil {
		return false
	}
	if q.state != qp.StateError {
		q.checkFailed()
	}
	var wc qp.WC
	for q.rc.NextRecvWC(&wc) {
		woken = q.complete(q.recvCQ, &wc) || woken
	}
	for !q.sending && q.rc.NextSendWC(&wc) {
		woken = q.complete(q.sendCQ, &wc) || woken
	}
	return woken
}

// fill builds the packets that may be sent now and returns how many.
func (q *QP) fill(b *txBatch, now time.Duration) int {
	var n, bytes, again int
	out := &b.out
	q.rc.Limit(q.admit(now))
	for n < batchSize && q.rc.Next(now, out) {
		head := out.AppendTo(b.heads[n][:0])
		parts := append(b.parts[n][:0], head)
		if out.Opcode.IsRequest() {
			parts = append(parts, out.Payload...)
		} else if out.PayloadLen > 0 {
			parts = append(parts, b.copy(n, out.Payload[0]))
		}
		if out.Pad > 0 {
			parts = append(parts, zeros[:out.Pad])
		}
		tos := q.attr.DSCP << 2
		if out.Opcode.HasPayload() && !q.cfg.CC.Disable {
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

// copy returns a copy of the data of the READ response at index n of the batch. Unlike the memory
// of a request, that may change at any time, and the ICRC must match the bytes that are sent.
func (b *txBatch) copy(n int, data []byte) []byte {
	const most = 4096
	if b.reads == nil {
		b.reads = make([]byte, batchSize*most)
	}
	c := b.reads[n*most:][:len(data)]
	copy(c, data)
	return c
}

// The ECN field of the ToS byte (RFC 3168).
const (
	ecnECT0 = 2
	ecnCE   = 3
)

// sendFailed counts packets that the link could not send. To the transport they are lost.
func (d *Device) sendFailed(err error) {
	if !d.closing() {
		d.counters.txErrors.Add(1)
	}
	if !errors.As(err, new(*link.TxError)) {
		d.linkFailed(err)
	}
}

// checkFailed notices that the state machines went to the error state.
func (q *QP) checkFailed() {
	status, event, failed := q.rc.Failed()
	if !failed {
		return
	}
	q.state = qp.StateError
	if event != 0 && !q.told {
		q.told = true
		q.dev.event(event, q.qpn, status.Err())
	}
}

// complete puts wc into c and reports whether that woke a goroutine.
func (q *QP) complete(c *CQ, wc *qp.WC) (woken bool) {
	woken, ok := c.push(wc)
	if !ok {
		q.dev.event(qp.EventCQError, q.qpn, c.overrunErr())
		q.dev.timers.report(c)
	}
	return woken
}

// arm sets the alarm to at if it would go off later.
func (q *QP) arm(at time.Duration) {
	if at < q.armed {
		q.armed = at
		q.dev.timers.set(&q.alarm, at)
	}
}
