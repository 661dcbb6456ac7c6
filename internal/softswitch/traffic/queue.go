package traffic

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// DefaultDepth is a queue's depth if nothing else is said, as in bmv2.
const DefaultDepth = 64

// MaxDepth is the largest depth: v1model's enq_qdepth has 19 bits.
const MaxDepth = 1<<19 - 1

// ErrInvalid is wrapped by errors about limits that cannot be.
var ErrInvalid = errors.New("invalid limits")

// Limits describe a queue. The zero value is a queue of DefaultDepth without a
// rate limit.
type Limits struct {
	// Depth is how many packets wait at most; one more is dropped (tail
	// drop). 0 means DefaultDepth.
	Depth int
	// Rate is how fast packets leave.
	Rate Rate
}

// Check reports limits that cannot be. The error wraps ErrInvalid.
func (l Limits) Check() error {
	switch {
	case l.Depth < 0 || l.Depth > MaxDepth:
		return fmt.Errorf("traffic: %w: a queue of %d packets; it can hold 1 to %d", ErrInvalid, l.Depth, MaxDepth)
	case l.Rate.PerSecond > maxRate:
		return fmt.Errorf("traffic: %w: a rate of %v; the largest is %d a second", ErrInvalid, l.Rate, uint64(maxRate))
	}
	return nil
}

// maxRate is beyond all links, and keeps the arithmetic within 64 bits.
const maxRate = 1e13

// A Rate is a number of packets or bits a second. The bits are those of frames
// as they leave, without preamble, frame check sequence and gap. The zero value
// is no limit.
type Rate struct {
	PerSecond uint64
	Bits      bool
}

// units are what ParseRate understands behind a number, longest first.
var units = []struct {
	name string
	bits bool
	mul  float64
}{
	{"kpps", false, 1e3}, {"mpps", false, 1e6}, {"pps", false, 1},
	{"kbit", true, 1e3}, {"mbit", true, 1e6}, {"gbit", true, 1e9}, {"tbit", true, 1e12}, {"bit", true, 1},
}

// ParseRate reads a rate: a number with one of the units pps, kpps, mpps, bit,
// kbit, mbit, gbit and tbit, or without one for packets a second; 0 is no
// limit. The error wraps ErrInvalid.
func ParseRate(s string) (Rate, error) {
	number, mul, bits := strings.ToLower(s), 1.0, false
	for _, u := range units {
		if n, ok := strings.CutSuffix(number, u.name); ok {
			number, mul, bits = n, u.mul, u.bits
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || v < 0 || math.IsNaN(v) || strings.ContainsAny(number, "xXpPiI_") {
		return Rate{}, fmt.Errorf("traffic: %w: %q is not a rate such as 20000pps, 15kpps, 100mbit or 2.5gbit", ErrInvalid, s)
	}
	switch v = math.Round(v * mul); {
	case v == 0:
		return Rate{}, nil
	case v > maxRate:
		return Rate{}, fmt.Errorf("traffic: %w: a rate of %s is more than %.0f a second", ErrInvalid, s, float64(maxRate))
	}
	return Rate{uint64(v), bits}, nil
}

// String returns the rate as ParseRate reads it.
func (r Rate) String() string {
	if r.PerSecond == 0 {
		return "unlimited"
	}
	best := "pps"
	if r.Bits {
		best = "bit"
	}
	n := r.PerSecond
	for _, u := range units {
		m := uint64(u.mul)
		if u.bits == r.Bits && r.PerSecond%m == 0 && r.PerSecond/m < n {
			best, n = u.name, r.PerSecond/m
		}
	}
	return strconv.FormatUint(n, 10) + best
}

// Times are what a packet saw of its queue, as v1model's standard metadata
// tells it.
type Times struct {
	EnqTime  time.Duration // when it came
	EnqDepth int           // packets that waited when it came, without it
	DeqDepth int           // packets that wait when it leaves, without it
}

// A Queue is one port's packets, first in, first out, that leave one after the
// other at a rate. It has no clock: who calls it tells the time, which must not
// go back. The zero value is a queue with the zero Limits.
//
// A packet leaves as soon as it is there and the one before has been gone for as
// long as that one takes at the rate. That time is reckoned from when the one
// before could leave: if Take is called late, as by a timer that wakes up late,
// the packets that could have left by then follow at once, and the rate is kept
// on the whole.
type Queue[T any] struct {
	limits  Limits
	ring    []waiting[T] // of a length that is a power of two, or empty
	head, n int

	free time.Duration // when the next packet may leave
	left time.Duration // when the packet that was taken last could leave
	rest uint64        // of a nanosecond, in 1/PerSecond
}

type waiting[T any] struct {
	item  T
	at    time.Duration
	depth int
}

// Limits returns the limits in force.
func (q *Queue[T]) Limits() Limits { return q.limits }

// SetLimits changes the limits; packets that wait stay, even if they are more
// than the new depth, and with another rate the next one may leave at once. The
// error wraps ErrInvalid.
func (q *Queue[T]) SetLimits(l Limits) error {
	if err := l.Check(); err != nil {
		return err
	}
	if l.Rate != q.limits.Rate {
		q.free, q.rest = 0, 0
	}
	q.limits = l
	return nil
}

// Len returns how many packets wait.
func (q *Queue[T]) Len() int { return q.n }

// Put appends a packet, or reports false if the queue is full.
func (q *Queue[T]) Put(now time.Duration, item T) bool {
	depth := q.limits.Depth
	if depth == 0 {
		depth = DefaultDepth
	}
	if q.n >= depth {
		return false
	}
	if q.n == len(q.ring) {
		q.grow()
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = waiting[T]{item, now, q.n}
	q.n++
	return true
}

func (q *Queue[T]) grow() {
	ring := make([]waiting[T], max(16, 2*len(q.ring)))
	for i := range q.n {
		ring[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
	}
	q.ring, q.head = ring, 0
}

// Next returns when the next packet may leave, which may be past; false if none
// waits.
func (q *Queue[T]) Next() (time.Duration, bool) {
	if q.n == 0 {
		return 0, false
	}
	return max(q.free, q.ring[q.head].at), true
}

// Take removes the next packet if it may leave by now. What it takes of the
// link is told by Sent.
func (q *Queue[T]) Take(now time.Duration) (item T, t Times, ok bool) {
	at, ok := q.Next()
	if !ok || at > now {
		return item, t, false
	}
	w := &q.ring[q.head]
	item, t = w.item, Times{w.at, w.depth, q.n - 1}
	*w = waiting[T]{}
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	q.left = at
	return item, t, true
}

// Sent tells that the packet that was taken last left as a frame of that many
// bytes. Without it (the packet was dropped behind the queue) the next one may
// leave at once.
func (q *Queue[T]) Sent(bytes int) {
	r := q.limits.Rate
	if r.PerSecond == 0 {
		return
	}
	units := uint64(1)
	if r.Bits {
		units = 8 * uint64(bytes)
	}
	total := units*uint64(time.Second) + q.rest
	q.free = q.left + time.Duration(total/r.PerSecond)
	q.rest = total % r.PerSecond
}

// Drain removes all packets at once, and gives each to f.
func (q *Queue[T]) Drain(f func(T)) {
	for q.n > 0 {
		w := &q.ring[q.head]
		item := w.item
		*w = waiting[T]{}
		q.head = (q.head + 1) & (len(q.ring) - 1)
		q.n--
		f(item)
	}
}
