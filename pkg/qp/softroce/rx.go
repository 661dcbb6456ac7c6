package softroce

import (
	"errors"
	"net"
	"runtime"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A receiver is the state of the receive goroutine.
type receiver struct {
	dev     *Device
	batch   [batchSize]link.Rx
	in      rc.In
	cur     *QP   // the queue pair of the last packet, locked
	touched []*QP // those that got packets in this batch
}

// receive is the receive goroutine. It ends when the link is closed.
func (d *Device) receive() {
	r := &receiver{dev: d, touched: make([]*QP, 0, batchSize)}
	for {
		n, err := d.link.Recv(r.batch[:])
		if err != nil {
			if !errors.Is(err, net.ErrClosed) || !d.closing() {
				d.linkFailed(err)
			}
			return
		}
		r.handle(r.batch[:n], d.now())
	}
}

// handle runs a batch of packets through their queue pairs.
func (r *receiver) handle(batch []link.Rx, now time.Duration) {
	var packets, bytes int
	for i := range batch {
		drop := r.packet(&batch[i], now)
		if drop != noDrop {
			r.dev.counters.rxDrop[drop].Add(1)
			continue
		}
		packets++
		bytes += len(r.in.Payload)
	}
	r.dev.counters.rxPackets.Add(uint64(packets))
	r.dev.counters.rxBytes.Add(uint64(bytes))
	r.leave()
	woken := false
	for i, q := range r.touched {
		q.mu.Lock()
		q.touched = false
		woken = q.drain() || woken
		if q.rc != nil {
			q.pump(now)
		}
		q.mu.Unlock()
		r.touched[i] = nil
	}
	r.touched = r.touched[:0]
	// Acknowledgements have been sent: now goroutines that wait for completions run here. Otherwise
	// the link would block this thread, and they would wait until another thread wakes up.
	if woken {
		runtime.Gosched()
	}
}

// leave unlocks the current queue pair.
func (r *receiver) leave() {
	if r.cur != nil {
		r.cur.mu.Unlock()
		r.cur = nil
	}
}

// packet checks one packet and passes it to its queue pair.
func (r *receiver) packet(p *link.Rx, now time.Duration) rxDrop {
	in := &r.in
	payload, err := in.Parse(p.Data)
	switch {
	case err != nil && errors.Is(err, rocev2.ErrOpcode):
		return dropOpcode
	case err != nil:
		return dropTruncated
	case in.TVer != 0:
		return dropTVer
	case in.PKey&0x7fff != rocev2.DefaultPKey&0x7fff:
		return dropPKey
	case !reliable(in.Opcode):
		return dropOpcode
	}
	q := r.cur
	if q == nil || q.qpn != in.DestQP {
		if q = r.enter(in.DestQP); q == nil {
			return dropQPN
		}
	}
	switch {
	case q.closed:
		return dropQPN
	case q.rc == nil || q.state == qp.StateError:
		return dropState
	case p.Src != q.attr.DestAddr:
		return dropPeer
	case len(payload) > q.attr.PathMTU:
		return dropLength
	}
	in.Payload = payload
	in.CE = p.TOS&3 == ecnCE
	if !q.touched {
		q.touched = true
		r.touched = append(r.touched, q)
	}
	if !q.talked && in.Opcode.IsRequest() {
		q.talked = true
		if q.state == qp.StateRTR {
			r.dev.event(qp.EventCommEst, q.qpn, nil)
		}
	}
	q.rc.Handle(in, now)
	return noDrop
}

// enter makes the queue pair with number n, locked, the current one; nil if
// there is none.
func (r *receiver) enter(n rocev2.QPN) *QP {
	r.leave()
	q := r.dev.qps.find(n)
	if q != nil {
		q.mu.Lock()
		r.cur = q
	}
	return q
}

// reliable reports whether op belongs to the reliable-connection service or is
// a CNP.
func reliable(op rocev2.Opcode) bool { return op>>5 == 0 || op == rocev2.CNP }
