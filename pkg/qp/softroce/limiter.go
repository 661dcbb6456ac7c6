package softroce

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A limiter bounds the request packets in flight of all the device's queue pairs (READ requests
// count as the responses that they ask for), so that each is acknowledged well within its ACK
// timeout, however many queue pairs send. At the bound, queue pairs wait, and each in its turn
// sends a burst. The ACK timer of a waiting queue pair does not run, unless it has packets in
// flight.
//
// The bound is at most the window of a queue pair. It is halved when an acknowledgement takes
// longer than a certain fraction of the timeout, as on an overloaded machine, and grows by one
// packet for each full bound of packets that is acknowledged in time.
//
// The limiter does not limit a queue pair whose rate DCQCN limits, or has limited recently: queues
// in the network delay its packets, and congestion control determines its share of those. Nor does
// it limit a queue pair without an ACK timeout, whose lost packets would count as in flight
// forever.
type limiter struct {
	mu     sync.Mutex
	bound  int
	most   int
	used   int // of the bound
	credit int // packets acknowledged in time since bound last grew
	cut    time.Duration
	slow   time.Duration // the longest recent time to an acknowledgement
	slowAt time.Duration
	queue  []*QP // those that wait
}

// A share is a queue pair's share of the bound.
type share struct {
	// Under the limiter's lock:
	packets int  // packets that are in flight, or may be sent
	waits   bool // it is in the queue
	turn    bool // it may send a burst

	// Under the queue pair's:
	acked  uint64
	since  time.Duration // time of the last acknowledgement, or of the first packet in flight
	resent uint64        // retransmissions before then
	paced  time.Duration // when DCQCN last limited its rate; 0: never
}

const (
	burst     = 16 // packets that a queue pair sends in its turn
	leastOpen = 2 * burst
	slowShare = 4 // an acknowledgement should arrive within 1/slowShare of an ACK timeout
	perSlow   = 4 // multiple of the longest recent time, for how long to wait for others
	slowFades = 4 * time.Second
	pacedFor  = 4 * time.Second // time after DCQCN's last limit in which a queue pair is not limited here
)

// admit returns how many packets q may send now.
func (q *QP) admit(now time.Duration) (n int) {
	l, s, f := &q.dev.limiter, &q.share, q.rc.Flight(now)
	acked, took, resent := int(f.Acked-s.acked), now-s.since, f.Again > s.resent
	if s.acked = f.Acked; acked > 0 || f.Open == 0 {
		s.since, s.resent = now, f.Again
	}
	if f.Paced {
		s.paced = now
	}
	paced := s.paced > 0 && now-s.paced < pacedFor
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.most < q.cfg.Window {
		l.most, l.bound = q.cfg.Window, max(q.cfg.Window, leastOpen)
	}
	if acked > 0 && !paced {
		if !resent { // otherwise the acknowledgement may be for either transmission (Karn's rule)
			l.slow, l.slowAt = max(took, l.usual(now)), now
		}
		l.learn(acked, took, qp.AckTimeout(q.cfg.Timeout)/slowShare, now)
	}
	q.rc.Expect(perSlow * l.usual(now))
	if paced || q.cfg.Timeout == 0 {
		l.withdraw(q)
		return math.MaxInt32
	}
	l.used += f.Sent - s.packets
	if s.turn {
		n = min(f.Ready, burst)
	}
	if len(l.queue) == 0 {
		n = max(n, min(f.Ready, l.bound-l.used))
	}
	if n == 0 && f.Ready > 0 {
		if !s.waits {
			s.waits = true
			l.queue = append(l.queue, q)
		}
		if f.Open > 0 && f.Sent == 0 { // a packet was lost: probe the path at once
			n = 1
		}
	}
	s.turn, s.packets = false, f.Sent+n
	l.used += n
	l.advance(&q.dev.timers)
	if f.Ready == 0 { // only time or input can change that
		return math.MaxInt32
	}
	return n
}

// advance lets waiting queue pairs send as far as there is room.
func (l *limiter) advance(t *timers) {
	for len(l.queue) > 0 && l.used+burst <= l.bound {
		q := l.queue[0]
		l.queue = l.queue[1:]
		q.share.waits, q.share.turn = false, true
		q.share.packets += burst
		l.used += burst
		t.set(&q.alarm, 0)
	}
}

// learn records that n packets were acknowledged, which should have taken at most good; 0: any
// time.
func (l *limiter) learn(n int, took, good, now time.Duration) {
	switch {
	case good > 0 && took > good:
		if now-l.cut > took || now < l.cut {
			l.bound, l.credit, l.cut = max(l.bound/2, leastOpen), 0, now
		}
	case l.bound < l.most:
		if l.credit += n; l.credit >= l.bound {
			l.credit -= l.bound
			l.bound++
		}
	}
}

// usual returns the longest recent time to an acknowledgement.
func (l *limiter) usual(now time.Duration) time.Duration {
	left := slowFades - min(max(0, now-l.slowAt), slowFades)
	return time.Duration(float64(l.slow) * float64(left) / float64(slowFades))
}

// leave returns q's share, because q is no longer connected.
func (l *limiter) leave(q *QP) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.withdraw(q)
	q.share = share{}
}

// withdraw returns q's share.
func (l *limiter) withdraw(q *QP) {
	s := &q.share
	if s.waits {
		l.queue = slices.DeleteFunc(l.queue, func(x *QP) bool { return x == q })
	}
	l.used -= s.packets
	s.packets, s.waits, s.turn = 0, false, false
	l.advance(&q.dev.timers)
}

// Silence implements qp.Silencer.
func (q *QP) Silence() (silence, patience time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.dev.now()
	if q.rc != nil && q.rc.Flight(now).Open > 0 {
		silence = max(0, now-q.share.since)
	}
	l := &q.dev.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	return silence, perSlow * l.usual(now)
}
