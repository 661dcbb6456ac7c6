// Package pipe is a cable in memory for tests, which may lose, double, delay and change
// frames. Each end is a framelink.Conn; package memnet makes ports of switches of them.
package pipe

import (
	"bytes"
	"net"
	"sync"
)

// DefaultQueue is how many frames each direction holds unless Config says
// otherwise.
const DefaultQueue = 1024

// A Config describes a cable. The zero value is a perfect cable.
type Config struct {
	// Queue is how many frames each direction holds; one more is dropped and
	// counted. 0 means DefaultQueue.
	Queue int
	// Impair, if not nil, decides about each frame from the first end to the
	// second ([0]) and back ([1]). Calls for one direction come one at a time.
	Impair [2]Impairment
}

// An Impairment decides what happens to frame number n (counted from 0) of one
// direction. It may change the frame in place, and only during the call.
type Impairment func(n uint64, frame []byte) Outcome

// An Outcome is what happens to a frame on its way. The zero value delivers it.
type Outcome struct {
	// Drop loses the frame, whatever else is set.
	Drop bool
	// Dups is how many more copies are delivered, right behind the frame.
	Dups int
	// Late is how many frames sent later overtake this one. If fewer ever
	// come, it is never delivered.
	Late int
}

// New returns the two ends of a cable.
func New(cfg Config) (*End, *End) {
	if cfg.Queue <= 0 {
		cfg.Queue = DefaultQueue
	}
	ab, ba := newQueue(cfg.Queue, cfg.Impair[0]), newQueue(cfg.Queue, cfg.Impair[1])
	return &End{tx: ab, rx: ba}, &End{tx: ba, rx: ab}
}

// An End is one end of a cable. Its methods may be called by many goroutines at once.
type End struct{ tx, rx *queue }

// Send sends frames, which it does not keep.
func (p *End) Send(frames [][]byte) error { return p.tx.put(frames) }

// Recv waits for frames, which are valid until the next Recv.
func (p *End) Recv(frames [][]byte) (int, error) { return p.rx.take(frames) }

// Up reports whether neither end is closed.
func (p *End) Up() bool { return !p.tx.isClosed() && !p.rx.isClosed() }

// Close ends this end: frames under way to it are lost, as are those that the
// other end sends from now on. The other end still receives what was sent.
func (p *End) Close() error {
	p.tx.closeTx()
	p.rx.closeRx()
	return nil
}

// Counters reports each direction at the end that can do something about it:
// overflow and impairment are the receiver's.
func (p *End) Counters(m map[string]uint64) {
	p.rx.mu.Lock()
	defer p.rx.mu.Unlock()
	m["rx_drop_overflow"] += p.rx.overflow
	m["rx_drop_impaired"] += p.rx.impaired
}

// A queue is one direction: a ring of frames, each in a buffer that is used
// again and again.
type queue struct {
	mu       sync.Mutex
	ready    sync.Cond // the ring is not empty, or rxClosed
	ring     [][]byte
	head, n  int
	spare    [][]byte // what the receiver holds, swapped against the ring's
	txClosed bool
	rxClosed bool

	impair   Impairment
	seen     uint64
	scratch  []byte // the frame that impair looks at
	late     []lateFrame
	overflow uint64
	impaired uint64
}

type lateFrame struct {
	frame []byte
	after int // frames that still overtake it
	dups  int
}

func newQueue(size int, impair Impairment) *queue {
	q := &queue{ring: make([][]byte, size), impair: impair}
	q.ready.L = &q.mu
	return q
}

func (q *queue) put(frames [][]byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.txClosed {
		return net.ErrClosed
	}
	if q.rxClosed {
		return nil // a cable with its other end unplugged
	}
	for _, f := range frames {
		if q.impair == nil {
			q.push(f)
		} else {
			q.pushImpaired(f)
		}
	}
	q.ready.Signal()
	return nil
}

func (q *queue) push(frame []byte) {
	if q.n == len(q.ring) {
		q.overflow++
		return
	}
	slot := &q.ring[(q.head+q.n)%len(q.ring)]
	*slot = append((*slot)[:0], frame...)
	q.n++
}

func (q *queue) pushImpaired(frame []byte) {
	q.scratch = append(q.scratch[:0], frame...)
	outcome := q.impair(q.seen, q.scratch)
	q.seen++
	switch {
	case outcome.Drop:
		q.impaired++
	case outcome.Late > 0:
		q.late = append(q.late, lateFrame{bytes.Clone(q.scratch), outcome.Late + 1, outcome.Dups})
	default:
		for range 1 + outcome.Dups {
			q.push(q.scratch)
		}
	}
	keep := q.late[:0]
	for _, l := range q.late {
		if l.after--; l.after > 0 {
			keep = append(keep, l)
			continue
		}
		for range 1 + l.dups {
			q.push(l.frame)
		}
	}
	q.late = keep
}

func (q *queue) take(frames [][]byte) (int, error) {
	if len(frames) == 0 {
		return 0, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.n == 0 && !q.rxClosed {
		q.ready.Wait()
	}
	if q.rxClosed {
		return 0, net.ErrClosed
	}
	k := min(len(frames), q.n)
	for len(q.spare) < k {
		q.spare = append(q.spare, nil)
	}
	for i := range k {
		slot := &q.ring[q.head]
		*slot, q.spare[i] = q.spare[i], *slot
		frames[i] = q.spare[i]
		q.head = (q.head + 1) % len(q.ring)
	}
	q.n -= k
	return k, nil
}

func (q *queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.txClosed || q.rxClosed
}

func (q *queue) closeTx() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.txClosed = true
}

func (q *queue) closeRx() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rxClosed = true
	q.n = 0
	q.ready.Broadcast()
}
