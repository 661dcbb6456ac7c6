package traffic

import (
	"fmt"
	"time"
)

// MaxClasses is how many classes a port can have: v1model's priority has 3 bits.
const MaxClasses = 8

// A Depth is how much waits in a queue.
type Depth struct{ Packets, Bytes int }

// Seen is what a packet saw of its queue.
type Seen struct {
	Class int
	Since time.Duration // when it came
	Enq   Depth         // what waited when it came, without it
	Deq   Depth         // what waits when it leaves, without it
}

// ClassStats are the counts of one class of a port.
type ClassStats struct {
	Queued  uint64 // packets that went into the queue
	Dropped uint64 // that found no room
	Sent    uint64 // frames that left; the difference to those queued was dropped by egress
	Bytes   uint64 // in them
	Waiting Depth  // what is in the queue now
	Peak    Depth  // the most that ever was in it
}

// A Port is where packets wait to be sent: a queue for each class, first in, first
// out, all in one Buffer. The packets of a class wait until no higher class has one;
// packets leave one after the other, at a rate. A Port has no clock: the caller
// passes the time, which must not go back.
//
// A packet leaves as soon as it is there and the one before has been gone for as
// long as that one takes at the rate. That time is reckoned from when the one
// before could leave: if Take is called late, as by a timer that wakes up late,
// the packets that could have left by then follow at once, and the rate is kept
// on the whole.
type Port[T any] struct {
	buffer *Buffer
	rate   Rate
	queues []queue[T] // by class, the highest last
	n      int        // packets in all of them

	free  time.Duration // when the next packet may leave
	left  time.Duration // when the packet that was taken last could leave
	rest  uint64        // of a nanosecond, in 1/PerSecond
	class int           // of the packet that was taken last
}

// A queue is a ring of packets.
type queue[T any] struct {
	ring    []waiting[T] // of a length that is a power of two, or empty
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

// NewPort returns a Port with that many classes, 1 to MaxClasses, and without a rate.
// The error wraps ErrInvalid.
func NewPort[T any](b *Buffer, classes int) (*Port[T], error) {
	if classes < 1 || classes > MaxClasses {
		return nil, fmt.Errorf("traffic: %w: %d classes; a port has 1 to %d", ErrInvalid, classes, MaxClasses)
	}
	return &Port[T]{buffer: b, queues: make([]queue[T], classes)}, nil
}

// SetRate changes how fast packets leave; with another rate the next one may leave
// at once. The error wraps ErrInvalid.
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

// Len returns how many packets wait.
func (p *Port[T]) Len() int { return p.n }

// Stats returns the counts of a class.
func (p *Port[T]) Stats(class int) ClassStats { return p.queues[class].stats }

// Put appends a packet of that many bytes to the queue of its class, or reports
// false if there is no room.
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

// Next returns when the next packet may leave, which may be past; false if none
// waits.
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

// Take removes the next packet if it may leave by now. Sent reports how much of
// the link it takes.
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

// Sent tells that the packet that was taken last left as a frame of that many
// bytes. Without it (the packet was dropped behind the queue) the next one may
// leave at once.
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
