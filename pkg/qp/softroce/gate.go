package softroce

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A gate bounds how many request packets of all the device's queue pairs are on their way, so
// that each is acknowledged well within its ACK timeout, however many queue pairs send. Those
// that find it full form a line, and each in its turn sends a burst. While a queue pair waits
// with nothing on its way, its ACK timer does not run.
//
// The bound begins with the window of a queue pair. It is halved when an acknowledgement takes
// more than a part of the timeout, as on a machine with more work than processors, and grows by
// a packet with each bound that was acknowledged in time.
type gate struct {
	mu     sync.Mutex
	size   int // 0: there was no queue pair yet
	most   int
	used   int // of all passes
	credit int // acknowledged in time since size has grown
	cut    time.Duration
	slow   time.Duration // the longest that an acknowledgement took of late
	seen   time.Duration // when that was looked at
	line   []*QP
}

// A pass is a queue pair's part of the gate.
type pass struct {
	// Under the gate's lock:
	packets int  // that are on their way, or may go
	turn    bool // it may send a burst
	waits   bool

	// Under the queue pair's:
	acked uint64
	since time.Duration // of the last progress, or of the first packet on its way
}

const (
	burst     = 16 // packets that one in the line sends in its turn
	leastGate = 2 * burst
	slowShare = 4 // of an ACK timeout, how long acknowledgements should take at the most
	perSlow   = 4 // of the longest that an acknowledgement took of late, to wait for one
	fade      = 4 * time.Second
)

// admit returns how many packets q may send now.
func (q *QP) admit(now time.Duration) (n int) {
	d, p, f := q.dev, &q.pass, q.rc.Flight(now)
	acked, took := int(f.Acked-p.acked), now-p.since
	if p.acked = f.Acked; acked > 0 || f.Open == 0 {
		p.since = now
	}
	g := &d.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.most < q.cfg.Window {
		g.most, g.size = q.cfg.Window, max(q.cfg.Window, leastGate)
	}
	if acked > 0 {
		g.acked(acked, took, qp.AckTimeout(q.cfg.Timeout)/slowShare, now)
	}
	q.rc.Expect(perSlow * g.slow)
	g.used += f.Sent - p.packets
	if p.turn {
		n = min(f.Ready, burst)
	}
	if len(g.line) == 0 {
		n = max(n, min(f.Ready, g.size-g.used))
	}
	if n == 0 && f.Ready > 0 {
		if !p.waits {
			p.waits = true
			g.line = append(g.line, q)
		}
		if f.Open > f.Sent && f.Sent == 0 { // what was lost may stall a group
			n = 1
		}
	}
	p.turn, p.packets = false, f.Sent+n
	g.used += n
	g.advance(d)
	if f.Ready == 0 {
		return math.MaxInt32 // time is the limit
	}
	return n
}

// advance lets those in the line go on as far as there is room.
func (g *gate) advance(d *Device) {
	for len(g.line) > 0 && g.used+burst <= g.size {
		q := g.line[0]
		g.line = g.line[1:]
		p := &q.pass
		p.waits, p.turn = false, true
		p.packets += burst
		g.used += burst
		d.timers.set(&q.alarm, 0)
	}
}

func (g *gate) acked(n int, took, slow, now time.Duration) {
	g.slow = max(took, g.usual(now))
	g.seen = now
	switch {
	case slow > 0 && took > slow:
		if now-g.cut > took || now < g.cut {
			g.size, g.credit, g.cut = max(g.size/2, leastGate), 0, now
		}
	case g.size < g.most:
		if g.credit += n; g.credit >= g.size {
			g.credit -= g.size
			g.size++
		}
	}
}

// usual is the longest that an acknowledgement took of late. It fades.
func (g *gate) usual(now time.Duration) time.Duration {
	since := min(max(0, now-g.seen), fade)
	return g.slow - time.Duration(float64(g.slow)*float64(since)/float64(fade))
}

// leave takes q out.
func (q *QP) leave() {
	g := &q.dev.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if q.pass.waits {
		g.line = slices.DeleteFunc(g.line, func(x *QP) bool { return x == q })
	}
	g.used -= q.pass.packets
	q.pass = pass{}
	g.advance(q.dev)
}

// Silence implements qp.Silencer.
func (q *QP) Silence() (silence, usual time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.dev.now()
	if q.rc != nil && q.rc.Flight(now).Open > 0 {
		silence = max(0, now-q.pass.since)
	}
	g := &q.dev.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	return silence, perSlow * g.usual(now)
}
