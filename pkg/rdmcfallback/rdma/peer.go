package rdma

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// Attributes of the queue pairs.
const (
	// ackTimeout is 134 ms, and there are seven retries: a device that doesn't
	// answer for one second, on hardware up to four, has gone. It is also what
	// the loss of a block's last packet costs.
	ackTimeout = 15
	retryCount = 7
	// A receiver that isn't ready is asked again after 10 ms. Nothing is sent without a
	// receive being posted, so this needn't be fast; but code 0 would mean 655 ms. After
	// six tries (7 would be unlimited) the peer is given up.
	minRNRTimer = 20
	rnrRetry    = 6
)

// A work request's number says what it is: the peer's number and one of these.
const (
	recvBlock = iota // on the queue pair for blocks from the peer
	sendReady
	sendBlock // on the queue pair for blocks to the peer
	recvReady
	recvSmall // on the queue pair for small messages, at the receiver
	sendFreed
	putSmall // … at the root
	recvFreed
	kindBits = 3
)

var requestNames = [...]string{recvBlock: "receive of a block", sendReady: "telling readiness", sendBlock: "send of a block",
	recvReady: "receive of readiness", recvSmall: "receive of a small message", sendFreed: "telling that slots are free",
	putSmall: "write of a small message", recvFreed: "receive of the number of free slots"}

func requestID(peer, kind int) uint64 { return uint64(peer)<<kindBits | uint64(kind) }

// A peer is another member and the queue pairs to it.
type peer struct {
	id    int
	hello hello
	down  bool
	part  []byte // the beginning of a message that is being told

	in   inbound
	out  outbound
	ring ring // root: to the peer; else, of peer 0: from it
}

// An inbound is the receiver's end of a queue pair.
type inbound struct {
	qp      qp.QP // nil before the first buffer is posted
	psn     rocev2.PSN
	up      bool // connected
	nPosted uint32
	told    uint32 // nPosted as the peer was told
	telling int    // messages about that which are under way
	regions fifo
}

// An outbound is the sender's end.
type outbound struct {
	qp      qp.QP // nil before the peer has offered the other end
	ready   uint32
	nSent   uint32
	regions fifo
}

// A fifo holds the regions that work requests use, the oldest first; nil for
// those without memory.
type fifo struct {
	ring    [MaxPosted]*region
	head, n int
}

func (f *fifo) push(r *region) {
	f.ring[(f.head+f.n)%MaxPosted] = r
	f.n++
}

// pop lets go of the oldest request's region.
func (f *fifo) pop() {
	if r := f.ring[f.head]; r != nil {
		r.busy--
		f.ring[f.head] = nil
	}
	f.head = (f.head + 1) % MaxPosted
	f.n--
}

// entriesOf is how many entries of the completion queue are kept for a queue pair
// with so many requests in each direction: those for all of them, twice.
func entriesOf(requests int) int { return 4 * requests }

// createQP makes a queue pair in INIT, with so many requests in each direction.
func (t *Transport) createQP(requests int, access qp.Access) (qp.QP, rocev2.PSN, error) {
	if t.entries += entriesOf(requests); t.entries > t.depth {
		return nil, 0, fmt.Errorf("rdma: %w: queue pairs need %d completions, and the queue has %d", qp.ErrLimit, t.entries, t.depth)
	}
	q, err := t.pd.CreateQP(qp.Init{SendCQ: t.cq, RecvCQ: t.cq, MaxSendWR: requests, MaxRecvWR: requests, MaxSGE: 1, SignalAll: true})
	if err != nil {
		return nil, 0, fmt.Errorf("rdma: %w", err)
	}
	if err := q.Modify(&qp.Attr{State: qp.InitState, Access: access}, qp.MaskInit); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("rdma: %w", err), q.Close())
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return q, rocev2.PSN(binary.BigEndian.Uint32(b[:]) & rocev2.Mask24), nil
}

// connectQP takes a queue pair from INIT to RTS.
func (t *Transport) connectQP(p *peer, q qp.QP, psn rocev2.PSN, a *address) error {
	attr := qp.Attr{State: qp.RTR, DestAddr: p.hello.addr, DestQPN: a.qpn, PathMTU: min(t.mtu, p.hello.mtu), RQPSN: a.psn,
		MinRNRTimer: minRNRTimer}
	err := q.Modify(&attr, qp.MaskRTR)
	if err == nil {
		attr = qp.Attr{State: qp.RTS, SQPSN: psn, Timeout: ackTimeout, RetryCnt: retryCount, RNRRetry: rnrRetry}
		err = q.Modify(&attr, qp.MaskRTS)
	}
	if err != nil {
		return fmt.Errorf("rdma: connect with queue pair %#x at %v: %w", uint32(a.qpn), p.hello.addr, err)
	}
	return nil
}

// offer makes the receiver's end of a queue pair and tells the peer. Buffers can
// be posted from now on.
func (t *Transport) offer(p *peer) (err error) {
	if p.in.qp, p.in.psn, err = t.createQP(MaxPosted, 0); err != nil {
		return err
	}
	a := address{p.in.qp.QPN(), p.in.psn}
	return t.mesh.Tell(p.id, a.encode(kindOffer))
}

// offered makes the sender's end.
func (t *Transport) offered(p *peer, msg []byte) error {
	a, err := parseAddress(msg)
	if err != nil {
		return err
	}
	if p.out.qp != nil {
		return fmt.Errorf("%w: it offered a queue pair twice", ErrProtocol)
	}
	mine := address{}
	if p.out.qp, mine.psn, err = t.createQP(MaxPosted, 0); err != nil {
		return err
	}
	mine.qpn = p.out.qp.QPN()
	if err := t.connectQP(p, p.out.qp, mine.psn, &a); err != nil {
		return err
	}
	for range MaxPosted {
		if err := t.postReady(p); err != nil {
			return err
		}
	}
	return t.mesh.Tell(p.id, mine.encode(kindAnswer))
}

// answered connects the receiver's end.
func (t *Transport) answered(p *peer, msg []byte) error {
	a, err := parseAddress(msg)
	if err != nil {
		return err
	}
	if p.in.qp == nil || p.in.up {
		return fmt.Errorf("%w: it answered to nothing", ErrProtocol)
	}
	if err := t.connectQP(p, p.in.qp, p.in.psn, &a); err != nil {
		return err
	}
	p.in.up = true
	return t.tellReady(p)
}

// postReady posts an empty receive, for readiness.
func (t *Transport) postReady(p *peer) error {
	t.recv = qp.RecvWR{ID: requestID(p.id, recvReady)}
	return p.out.qp.PostRecv(&t.recv)
}

// tellReady tells the peer how many buffers are posted, if it is connected and
// doesn't know. If too many such messages are under way, it is done later, for
// all at once.
func (t *Transport) tellReady(p *peer) error {
	in := &p.in
	if !in.up || in.told == in.nPosted || in.telling == MaxPosted {
		return nil
	}
	t.send = qp.SendWR{ID: requestID(p.id, sendReady), Opcode: qp.OpSendImm, Imm: in.nPosted}
	in.told = in.nPosted
	in.telling++
	return in.qp.PostSend(&t.send)
}

// postRecv posts a buffer.
func (t *Transport) postRecv(p *peer, buf []byte) error {
	in := &p.in
	if in.regions.n == MaxPosted {
		return fmt.Errorf("rdma: %d buffers are posted for blocks of member %d already", MaxPosted, p.id)
	}
	if in.qp == nil {
		if err := t.offer(p); err != nil {
			return err
		}
	}
	t.recv = qp.RecvWR{ID: requestID(p.id, recvBlock)}
	r, err := t.locate(buf, true)
	if err != nil {
		return err
	}
	if r != nil {
		t.recv.SGEs = t.sge[:]
	}
	in.regions.push(r)
	in.nPosted++
	if err := in.qp.PostRecv(&t.recv); err != nil {
		return err
	}
	return t.tellReady(p)
}

// sendBlock posts a send.
func (t *Transport) sendBlock(p *peer, imm uint32, block []byte) error {
	out := &p.out
	if out.ready == out.nSent || out.regions.n == MaxPosted {
		return fmt.Errorf("%w: member %d", ErrNotReady, p.id)
	}
	t.send = qp.SendWR{ID: requestID(p.id, sendBlock), Opcode: qp.OpSendImm, Imm: imm}
	r, err := t.locate(block, false)
	if err != nil {
		return err
	}
	if r != nil {
		t.send.SGEs = t.sge[:]
	}
	out.regions.push(r)
	out.nSent++
	return out.qp.PostSend(&t.send)
}

// locate sets the entry t.sge to buf; for an empty one, the region is nil.
func (t *Transport) locate(buf []byte, write bool) (r *region, err error) {
	if len(buf) > 0 {
		t.sge[0], r, err = t.memory.use(buf, write)
	}
	return r, err
}

// complete turns a completion into an event.
func (t *Transport) complete(wc *qp.WC) error {
	p := t.at(wc.ID >> kindBits)
	if p == nil || p.down {
		return nil // of a queue pair that is closed
	}
	kind := int(wc.ID & (1<<kindBits - 1))
	if wc.Status != qp.Success {
		t.fail(p, explain(kind, wc.Status))
		return nil
	}
	var err error
	switch kind {
	case recvBlock:
		if !wc.HasImm || wc.Opcode != qp.WCRecv {
			t.fail(p, fmt.Errorf("%w: a block came as %v without immediate value", ErrProtocol, wc.Opcode))
			return nil
		}
		p.in.regions.pop()
		t.push(rdmcfallback.Event{Kind: rdmcfallback.Received, Peer: p.id, Imm: wc.Imm, N: int(wc.ByteLen)})
	case sendReady:
		p.in.telling--
		err = t.tellReady(p)
	case sendBlock:
		p.out.regions.pop()
		t.push(rdmcfallback.Event{Kind: rdmcfallback.Sent, Peer: p.id})
	case recvReady:
		more := wc.Imm - p.out.ready
		if !wc.HasImm || wc.Opcode != qp.WCRecv || more == 0 || more > MaxPosted || wc.Imm-p.out.nSent > MaxPosted {
			t.fail(p, fmt.Errorf("%w: %d buffers posted, after %d before and %d blocks sent", ErrProtocol, wc.Imm, p.out.ready, p.out.nSent))
			return nil
		}
		p.out.ready = wc.Imm
		for range more {
			t.push(rdmcfallback.Event{Kind: rdmcfallback.Ready, Peer: p.id})
		}
		err = t.postReady(p)
	default:
		err = t.completeRing(p, kind, wc)
	}
	return err
}

// at returns a peer by the upper bits of a work request's number.
func (t *Transport) at(id uint64) *peer {
	if id < uint64(len(t.peers)) {
		return t.peers[id]
	}
	return nil
}

// explain says why a queue pair failed.
func explain(kind int, s qp.Status) error {
	what := requestNames[kind]
	switch {
	case kind == recvBlock && s == qp.LocLenErr:
		return fmt.Errorf("%w: a block longer than its buffer: %w", ErrProtocol, s.Err())
	case kind == recvSmall && (s == qp.LocLenErr || s == qp.LocAccessErr):
		return fmt.Errorf("%w: a small message that isn't for the ring: %w", ErrProtocol, s.Err())
	case kind == recvSmall && s == qp.WRFlushErr:
		return fmt.Errorf("%w: %s: the device has ended it, perhaps because the root wrote elsewhere: %w", ErrQueuePair, what, s.Err())
	case s == qp.RetryExcErr:
		return fmt.Errorf("%w: %s: the peer's device does not answer: %w", ErrQueuePair, what, s.Err())
	case s == qp.WRFlushErr:
		return fmt.Errorf("%w: %s: the device has ended it: %w", ErrQueuePair, what, s.Err())
	}
	return fmt.Errorf("%w: %s: %w", ErrQueuePair, what, s.Err())
}

// fail ends the queue pairs to a peer. Nothing of it comes after Down.
func (t *Transport) fail(p *peer, err error) {
	if p.down {
		return
	}
	p.down = true
	t.release(p)
	t.push(rdmcfallback.Event{Kind: rdmcfallback.Down, Peer: p.id, Err: err})
}

// release closes the queue pairs, after which nothing uses their memory.
func (t *Transport) release(p *peer) {
	for _, q := range []qp.QP{p.in.qp, p.out.qp} {
		if q != nil {
			_ = q.Close() // fails only if the device is closed already
		}
	}
	p.ring.close()
	for _, f := range []*fifo{&p.in.regions, &p.out.regions} {
		for f.n > 0 {
			f.pop()
		}
	}
}
