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
	// ackTimeout is 134 ms, with seven retries: a device that does not respond for one second, or
	// up to four with hardware, is considered dead. The loss of a block's last packet also costs
	// this time.
	ackTimeout = 15
	retryCount = 7
	// A receiver that is not ready is retried after 10 ms. Nothing is sent without a posted
	// receive, so this need not be fast; but code 0 would mean 655 ms. After six retries (7 would
	// be unlimited) the peer is considered failed.
	minRNRTimer = 20
	rnrRetry    = 6
)

// A work request's ID consists of the peer's number and one of these kinds.
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
	part  []byte // the received beginning of a message

	in   inbound
	out  outbound
	ring ring // root: to the peer; else, of peer 0: from it
}

// A conn is one end of a queue pair. The receiver tells the sender how many buffers it has posted,
// or slots freed, so far.
type conn struct {
	qp      qp.QP // nil before it is needed
	psn     rocev2.PSN
	up      bool // connected
	count   uint32
	told    uint32 // the count last sent to the peer
	telling int    // sends of the count in flight
}

// An inbound is the receiver's end for blocks; count is the number of posted buffers.
type inbound struct {
	conn
	regions fifo
}

// An outbound is the sender's end.
type outbound struct {
	conn
	ready   uint32
	nSent   uint32
	regions fifo
}

// A fifo holds the regions used by work requests, oldest first; nil for requests without memory.
type fifo struct {
	ring    [MaxPosted]*region
	head, n int
}

func (f *fifo) push(r *region) {
	f.ring[(f.head+f.n)%MaxPosted] = r
	f.n++
}

// pop releases the region of the oldest request.
func (f *fifo) pop() {
	if r := f.ring[f.head]; r != nil {
		r.busy--
		f.ring[f.head] = nil
	}
	f.head = (f.head + 1) % MaxPosted
	f.n--
}

// entriesOf returns how many entries of the completion queue are reserved for a queue pair with
// that many requests in each direction: those for all of them, twice.
func entriesOf(requests int) int { return 4 * requests }

// createQP creates the queue pair of c, in INIT, with that many requests in each direction.
func (t *Transport) createQP(c *conn, requests int, access qp.Access) error {
	if t.entries += entriesOf(requests); t.entries > t.depth {
		return fmt.Errorf("rdma: %w: queue pairs need %d completions, and the queue has %d", qp.ErrLimit, t.entries, t.depth)
	}
	q, err := t.pd.CreateQP(qp.Init{SendCQ: t.cq, RecvCQ: t.cq, MaxSendWR: requests, MaxRecvWR: requests, MaxSGE: 1, SignalAll: true})
	if err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	if err := q.Modify(&qp.Attr{State: qp.StateInit, Access: access}, qp.MaskInit); err != nil {
		return errors.Join(fmt.Errorf("rdma: %w", err), q.Close())
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	c.qp, c.psn = q, rocev2.PSN(binary.BigEndian.Uint32(b[:])&rocev2.Mask24)
	return nil
}

// address returns the address of c for the peer.
func (c *conn) address() *address { return &address{c.qp.QPN(), c.psn} }

// connectQP moves a queue pair from INIT to RTS.
func (t *Transport) connectQP(p *peer, c *conn, a *address) error {
	attr := qp.Attr{State: qp.StateRTR, DestAddr: p.hello.addr, DestQPN: a.QPN, PathMTU: min(t.mtu, p.hello.mtu), RQPSN: a.PSN,
		MinRNRTimer: minRNRTimer}
	err := c.qp.Modify(&attr, qp.MaskRTR)
	if err == nil {
		attr = qp.Attr{State: qp.StateRTS, SQPSN: c.psn, Timeout: ackTimeout, RetryCnt: retryCount, RNRRetry: rnrRetry}
		err = c.qp.Modify(&attr, qp.MaskRTS)
	}
	if err != nil {
		return fmt.Errorf("rdma: connect with queue pair %#x at %v: %w", uint32(a.QPN), p.hello.addr, err)
	}
	c.up = true
	return nil
}

// offer creates the receiver's end of a queue pair and tells the peer. From then on, buffers can be
// posted.
func (t *Transport) offer(p *peer) error {
	if err := t.createQP(&p.in.conn, MaxPosted, 0); err != nil {
		return err
	}
	return t.mesh.Tell(p.id, p.in.address().encode(kindOffer))
}

// offered creates the sender's end.
func (t *Transport) offered(p *peer, a *address) error {
	c := &p.out.conn
	if c.qp != nil {
		return fmt.Errorf("%w: it offered a queue pair twice", ErrProtocol)
	}
	if err := t.createQP(c, MaxPosted, 0); err != nil {
		return err
	}
	if err := t.connectQP(p, c, a); err != nil {
		return err
	}
	if err := t.postEmpty(p, c, recvReady, MaxPosted); err != nil {
		return err
	}
	return t.mesh.Tell(p.id, c.address().encode(kindAnswer))
}

// answered connects the receiver's end.
func (t *Transport) answered(p *peer, a *address) error {
	if p.in.qp == nil || p.in.up {
		return fmt.Errorf("%w: it answered to nothing", ErrProtocol)
	}
	if err := t.connectQP(p, &p.in.conn, a); err != nil {
		return err
	}
	return t.tellCount(p, &p.in.conn, sendReady, MaxPosted)
}

// postEmpty posts n empty receives: for counts, or for messages written to the ring.
func (t *Transport) postEmpty(p *peer, c *conn, kind, n int) error {
	for range n {
		t.recv = qp.RecvWR{ID: requestID(p.id, kind)}
		if err := c.qp.PostRecv(&t.recv); err != nil {
			return err
		}
	}
	return nil
}

// tellCount sends c.count to the peer, if it is connected and does not know it. If too many such
// sends are in flight, a later one covers it.
func (t *Transport) tellCount(p *peer, c *conn, kind, most int) error {
	if !c.up || c.told == c.count || c.telling == most {
		return nil
	}
	t.send = qp.SendWR{ID: requestID(p.id, kind), Opcode: qp.OpSendImm, Imm: c.count}
	c.told = c.count
	c.telling++
	return c.qp.PostSend(&t.send)
}

// grown returns by how much the count in a completion exceeds the last one. Unless that is 1 to
// room, it fails the peer and returns ok = false.
func (t *Transport) grown(p *peer, wc *qp.WC, last, room uint32, what string) (more uint32, ok bool) {
	more = wc.Imm - last
	if wc.HasImm && wc.Opcode == qp.WCRecv && more > 0 && more <= room {
		return more, true
	}
	t.fail(p, fmt.Errorf("%w: %d %s, after %d before; there can be %d more", ErrProtocol, wc.Imm, what, last, room))
	return 0, false
}

// postRecv posts a buffer.
func (t *Transport) postRecv(p *peer, buf []byte) error {
	in := &p.in
	switch {
	case len(buf) > qp.MaxMessage:
		return fmt.Errorf("rdma: a buffer of %d bytes, at most %d", len(buf), uint32(qp.MaxMessage))
	case in.regions.n == MaxPosted:
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
	in.count++
	if err := in.qp.PostRecv(&t.recv); err != nil {
		return err
	}
	return t.tellCount(p, &in.conn, sendReady, MaxPosted)
}

// sendBlock posts a send.
func (t *Transport) sendBlock(p *peer, imm uint32, block []byte) error {
	out := &p.out
	switch {
	case len(block) > qp.MaxMessage:
		return fmt.Errorf("rdma: a block of %d bytes, at most %d", len(block), uint32(qp.MaxMessage))
	case out.ready == out.nSent || out.regions.n == MaxPosted:
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

// locate sets t.sge to the entry for buf; for an empty buf, the region is nil.
func (t *Transport) locate(buf []byte, write bool) (r *region, err error) {
	if len(buf) > 0 {
		t.sge[0], r, err = t.memory.use(buf, write)
	}
	return r, err
}

// fail ends the queue pairs to a peer. No event of the peer follows Down.
func (t *Transport) fail(p *peer, err error) {
	if p.down {
		return
	}
	p.down = true
	t.release(p)
	t.push(rdmcfallback.Event{Kind: rdmcfallback.EventDown, Peer: p.id, Err: err})
}

// release closes the queue pairs, so that nothing uses their memory any more.
func (t *Transport) release(p *peer) {
	for _, q := range []qp.QP{p.in.qp, p.out.qp, p.ring.qp} {
		if q != nil {
			_ = q.Close() // fails only if the device is closed already
		}
	}
	if p.ring.mr != nil {
		_ = p.ring.mr.Close() // its memory stays, for messages that have not been fetched
	}
	for _, f := range []*fifo{&p.in.regions, &p.out.regions} {
		for f.n > 0 {
			f.pop()
		}
	}
}

func (t *Transport) push(e rdmcfallback.Event) { t.events = append(t.events, e) }

// createCQ creates the completion queue, with depth entries if the device supports as many.
func (t *Transport) createCQ(depth int) (err error) {
	if most := t.device.Attr().MaxCQE; most > 0 {
		depth = min(depth, most)
	}
	t.depth = depth
	if t.cq, err = t.device.CreateCQ(depth); err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	return nil
}

// peer returns a peer. The lock is held.
func (t *Transport) peer(i int) (*peer, error) {
	if t.closed {
		return nil, ErrClosed
	}
	if i < 0 || i >= len(t.peers) || t.peers[i] == nil {
		return nil, fmt.Errorf("rdma: this member has no peer %d of %d", i, len(t.peers))
	}
	return t.peers[i], nil
}

// use calls f with a peer, under the lock, unless the peer is down.
func (t *Transport) use(peer int, f func(p *peer) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.peer(peer)
	if err != nil || p.down {
		return err
	}
	return f(p)
}
