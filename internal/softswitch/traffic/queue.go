package traffic

import (
	"fmt"
	"time"
)

// MaxClasses is the maximum number of classes of a port: v1model's priority has 3 bits.
const MaxClasses = 8

// A Depth is the content of a queue.
type Depth struct{ Packets, Bytes int }

// Seen is the state of its queue that a packet saw.
type Seen struct {
	Class int
	Since time.Duration // when the packet was queued
	Enq   Depth         // the queue at that time, without the packet
	Deq   Depth         // the queue when the packet was dequeued, without it
}

// ClassStats are the counters of one class of a port.
type ClassStats struct {
	Queued  uint64 // packets queued
	Dropped uint64 // packets that did not fit
	Sent    uint64 // frames sent; egress dropped the rest of those dequeued
	Bytes   uint64 // bytes sent
	Waiting Depth  // current content of the queue
	Peak    Depth  // maximum content of the queue
}

// A Port holds the packets waiting to be sent on a port: a FIFO queue for each class, all in one
// Buffer. Packets of a class wait until no higher class has one; packets leave one after the other,
// at a rate. A Port has no clock: the caller passes the time, which must not decrease.
//
// A packet may leave once the previous one has been transmitted at the rate, counted from the time
// at which that one could leave. So if Take is called late, as by a late timer, the packets that
// could have left by then follow at once, and the average rate is kept.
type Port[T any] struct {
	buffer *Buffer
	rate   Rate
	queues []queue[T] // by class, the highest last
	n      int        // total number of packets

	free  time.Duration // when the next packet may leave
	left  time.Duration // when the packet taken last could leave
	rest  uint64        // fraction of a nanosecond, in 1/PerSecond
	class int           // of the packet taken last
}

// A queue is a ring of packets.
type queue[T any] struct {
	ring    []waiting[T] // its length is a power of two or 0
	head    int
	account account
	stats   ClassStats
}

type waiting[T any] struct {
	item  T
	bytes int
	at    time.Duration
	depth Depth
}

// NewPort returns a Port with that many classes, 1 to MaxClasses, and no rate. The error wraps
// ErrInvalid.
func NewPort[T any](b *Buffer, classes int) (*Port[T], error) {
	if classes < 1 || classes > MaxClasses {
		return nil, fmt.Errorf("traffic: %w: %d classes; a port has 1 to %d", ErrInvalid, classes, MaxClasses)
	}
	return &Port[T]{buffer: b, queues: make([]queue[T], classes)}, nil
}

// SetRate changes the rate. After a change the next packet may leave at once. The error wraps
// ErrInvalid.
func (p *Port[T]) SetRate(r Rate) error {
	if err := r.Check(); err != nil {
		return err
	}
	if r != p.rate {
		p.free, p.rest = 0, 0
	}
	p.rate = r
	return nil
}

// Len returns the number of waiting packets.
func (p *Port[T]) Len() int { return p.n }

// Stats returns the counters of a class.
func (p *Port[T]) Stats(class int) ClassStats { return p.queues[class].stats }

// Put appends a packet of that many bytes to the queue of its class, or returns false if it does
// not fit.
func (p *Port[T]) Put(now time.Duration, class, bytes int, item T) bool {
	q := &p.queues[class]
	s := &q.stats
	if !p.buffer.take(&q.account, bytes) {
		s.Dropped++
		return false
	}
	n := s.Waiting.Packets
	if n == len(q.ring) {
		q.grow()
	}
	q.ring[(q.head+n)&(len(q.ring)-1)] = waiting[T]{item, bytes, now, s.Waiting}
	s.Queued++
	s.Waiting = Depth{n + 1, q.account.bytes}
	s.Peak = Depth{max(s.Peak.Packets, n+1), max(s.Peak.Bytes, q.account.bytes)}
	p.n++
	return true
}

func (q *queue[T]) grow() {
	ring := make([]waiting[T], max(16, 2*len(q.ring)))
	for i := range q.ring {
		ring[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
	}
	q.ring, q.head = ring, 0
}

// Next returns when the next packet may leave, possibly in the past; false if none waits.
func (p *Port[T]) Next() (time.Duration, bool) {
	if p.n == 0 {
		return 0, false
	}
	first, ok := time.Duration(0), false
	for i := range p.queues {
		q := &p.queues[i]
		if q.stats.Waiting.Packets > 0 && (!ok || q.ring[q.head].at < first) {
			first, ok = q.ring[q.head].at, true
		}
	}
	return max(p.free, first), ok
}

// Take removes the next packet if it may leave by now. The caller reports its size on the link with
// Sent.
func (p *Port[T]) Take(now time.Duration) (item T, seen Seen, ok bool) {
	at, ok := p.Next()
	if !ok || at > now {
		return item, seen, false
	}
	class := len(p.queues) - 1
	for p.queues[class].stats.Waiting.Packets == 0 {
		class--
	}
	q := &p.queues[class]
	w := &q.ring[q.head]
	p.buffer.give(&q.account, w.bytes)
	q.stats.Waiting = Depth{q.stats.Waiting.Packets - 1, q.account.bytes}
	item, seen = w.item, Seen{class, w.at, w.depth, q.stats.Waiting}
	*w = waiting[T]{}
	q.head = (q.head + 1) & (len(q.ring) - 1)
	p.n--
	p.left, p.class = at, class
	return item, seen, true
}

// Sent reports that the packet taken last left as a frame of that many bytes. Without it (egress
// dropped the packet) the next one may leave at once.
func (p *Port[T]) Sent(bytes int) {
	s := &p.queues[p.class].stats
	s.Sent++
	s.Bytes += uint64(bytes)
	if p.rate.PerSecond == 0 {
		return
	}
	units := uint64(1)
	if p.rate.Bits {
		units = 8 * uint64(bytes)
	}
	total := units*uint64(time.Second) + p.rest
	p.free = p.left + time.Duration(total/p.rate.PerSecond)
	p.rest = total % p.rate.PerSecond
}
