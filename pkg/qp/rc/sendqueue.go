package rc

import (
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A workQueue is the ring of posted send or receive requests. It has three indices, in this order:
// reported (completions returned), done (complete or flushed) and tail (posted). They are 32-bit
// counters that wrap; a slot is the index modulo the ring's size. The ring grows with the number of
// outstanding requests, because most queue pairs never use their full depth.
type workQueue struct {
	slots          []wqe // a power of two, so that 32-bit indices may wrap
	most           int   // maximum number of slots
	maxSGE         int
	reported, done uint32
	tail           uint32
}

// A wqe is one posted request.
type wqe struct {
	id     uint64
	mem    [][]byte // gather or scatter list
	status qp.Status
	length uint32 // of the message
	imm    uint32

	// Of a send request:
	op         qp.Opcode
	flags      qp.SendFlags
	signaled   bool
	rkey       uint32
	remoteAddr uint64
	first      uint64 // position of the first packet
	packets    int    // at least 1: an empty message is one packet

	// Of a receive request:
	opcode qp.WCOpcode
	hasImm bool
}

// firstSlots is the number of slots of a new queue.
const firstSlots = 8

func newWorkQueue(size, maxSGE int) workQueue {
	q := workQueue{most: 1, maxSGE: maxSGE}
	for q.most < size {
		q.most <<= 1
	}
	q.slots = make([]wqe, min(q.most, firstSlots))
	return q
}

func (q *workQueue) at(i uint32) *wqe { return &q.slots[i&uint32(len(q.slots)-1)] }

// free returns the slot at tail, for a request with that memory.
func (q *workQueue) free(mem [][]byte, kind string) (*wqe, error) {
	open := int(q.tail - q.reported)
	switch {
	case open >= q.most:
		return nil, fmt.Errorf("%w: %d %s requests outstanding", qp.ErrQueueFull, q.most, kind)
	case len(mem) > q.maxSGE:
		return nil, fmt.Errorf("%w: %d entries, the queue pair allows %d", qp.ErrSGE, len(mem), q.maxSGE)
	case open == len(q.slots):
		old := *q
		q.slots = make([]wqe, 2*open)
		for i := q.reported; i != q.tail; i++ {
			*q.at(i) = *old.at(i)
		}
	}
	return q.at(q.tail), nil
}

// fail sets the status of the oldest request that is not done. There must be one.
func (q *workQueue) fail(s qp.Status) { q.at(q.done).status = s }

// flush completes everything that is not done, with WRFlushErr unless fail has set another status.
func (q *workQueue) flush() {
	for ; q.done != q.tail; q.done++ {
		if w := q.at(q.done); w.status == qp.StatusSuccess {
			w.status = qp.StatusWRFlushErr
		}
	}
}

// holds reports whether a request that is not done refers to memory for which in returns true.
func (q *workQueue) holds(in func([]byte) bool) bool {
	for i := q.done; i != q.tail; i++ {
		if slices.ContainsFunc(q.at(i).mem, in) {
			return true
		}
	}
	return false
}

// A sendQueue holds the send requests. Its done requests are acknowledged or flushed.
type sendQueue struct {
	workQueue
	end uint64 // one past the last position of the last posted request
}

func (q *sendQueue) push(wr *qp.SendWR, gather [][]byte, mtu int, signalAll bool) error {
	w, err := q.free(gather, "send")
	if err != nil {
		return err
	}
	length := 0
	for _, g := range gather {
		length += len(g)
	}
	if length > qp.MaxMessage {
		return fmt.Errorf("%w: message of %d bytes, at most %d", qp.ErrSGE, length, qp.MaxMessage)
	}
	*w = wqe{
		id: wr.ID, op: wr.Opcode, flags: wr.Flags, imm: wr.Imm, rkey: wr.RKey, remoteAddr: wr.RemoteAddr,
		signaled: signalAll || wr.Flags&qp.FlagSignaled != 0,
		mem:      append(w.mem[:0], gather...),
		length:   uint32(length),
		first:    q.end,
		packets:  responses(length, mtu),
	}
	q.end += uint64(w.packets)
	q.tail++
	return nil
}

// acknowledge marks the requests done whose packets all precede pos.
func (q *sendQueue) acknowledge(pos uint64) {
	for q.done != q.tail {
		w := q.at(q.done)
		if w.first+uint64(w.packets) > pos {
			return
		}
		q.done++
	}
}

// find returns the index of the request that contains pos, or tail if pos is the end.
func (q *sendQueue) find(pos uint64) uint32 {
	i := q.done
	for i != q.tail && q.at(i).first+uint64(q.at(i).packets) <= pos {
		i++
	}
	return i
}

// nextWC returns the next completion, of a signaled or failed request.
func (q *sendQueue) nextWC(wc *qp.WC, local rocev2.QPN) bool {
	for q.reported != q.done {
		w := q.at(q.reported)
		q.reported++
		clear(w.mem)
		if !w.signaled && w.status == qp.StatusSuccess {
			continue
		}
		*wc = qp.WC{ID: w.id, Status: w.status, Opcode: qp.WCSend, QPN: local, ByteLen: w.length}
		switch {
		case w.op.IsWrite():
			wc.Opcode = qp.WCWrite
		case w.op == qp.OpRead:
			wc.Opcode = qp.WCRead
		}
		return true
	}
	return false
}

// sendOpcode returns the BTH opcode of a packet of w, which is a SEND or WRITE.
func (w *wqe) sendOpcode(first, last bool) rocev2.Opcode {
	base, lastImm, onlyImm := rocev2.SendFirst, rocev2.SendLastImm, rocev2.SendOnlyImm
	if w.op.IsWrite() {
		base, lastImm, onlyImm = rocev2.WriteFirst, rocev2.WriteLastImm, rocev2.WriteOnlyImm
	}
	switch {
	case first && last && w.op.HasImm():
		return onlyImm
	case first && last:
		return base + (rocev2.SendOnly - rocev2.SendFirst)
	case first:
		return base
	case last && w.op.HasImm():
		return lastImm
	case last:
		return base + (rocev2.SendLast - rocev2.SendFirst)
	}
	return base + (rocev2.SendMiddle - rocev2.SendFirst)
}

// sliceGather appends to dst the pieces of src that hold the n bytes at offset off.
func sliceGather(dst, src [][]byte, off, n int) [][]byte {
	for _, s := range src {
		skip := min(off, len(s))
		off -= skip
		if piece := s[skip:min(len(s), skip+n)]; len(piece) > 0 {
			dst = append(dst, piece)
			n -= len(piece)
		}
	}
	return dst
}

// scatter copies src to offset off of dst. It reports whether all of it fit.
func scatter(dst [][]byte, off int, src []byte) bool {
	for _, d := range dst {
		skip := min(off, len(d))
		off -= skip
		src = src[copy(d[skip:], src):]
	}
	return len(src) == 0
}

// responses returns the number of packets in the response to a READ of n bytes.
func responses(n, mtu int) int { return max(1, (n+mtu-1)/mtu) }
