package schedule

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// A network is a discrete-event simulation of a group that performs a schedule
// as a session does: without steps, each node sends its next block as soon as it
// holds all of it and the receiver has announced a buffer for it. The unit of
// time is what one block takes on one link.
//
// Each node has a full-duplex link to a switch. Blocks that share a wire share
// its speed equally.
type network struct {
	schedule Schedule
	// sends is the maximum number of a node's sends in flight, and recvs of its posted receives; 0
	// means 1.
	sends, recvs int
	// relay is how long after a block's arrival it can be sent on.
	relay float64
	// speed of blocks from one node to another, as a part of a link's; nil
	// means 1 for all.
	speed func(from, to int) float64
	// racks, if there are any, have one uplink and one downlink each, with the speed of uplink
	// links.
	racks  *Racks
	uplink float64
	// pause makes one node do nothing at all from a time on, for so long.
	pauseNode         int
	pauseAt, pauseFor float64

	now        float64
	hosts      []host
	unfinished int
	flows      []*flow
	wires      []wire    // each node's out, then each's in, each rack's up, then each's down
	wakes      []float64 // when else something may happen
}

type wire struct {
	speed float64
	flows int
}

type host struct {
	Node
	next     Transfer // the next to send
	sending  bool     // there is one
	underWay int
	posted   []Transfer // receives
	last     int64      // the step of the last receive posted
	more     bool       // there may be more receives to post
	came     []Transfer // and the node has not yet seen them
	received int64
	holds    []float64 // since when each block can be sent on
}

type flow struct {
	Transfer
	from  int
	left  float64
	limit float64
	wires []int
}

// run returns when the last node has the whole message.
func (w *network) run(t testing.TB) float64 {
	t.Helper()
	w.start(t)
	for {
		for i := range w.hosts {
			w.receive(i)
		}
		if w.unfinished == 0 {
			return w.now
		}
		for i := range w.hosts {
			w.send(i)
		}
		if err := w.advance(); err != nil {
			t.Fatalf("%v, n=%d, k=%d: %v", w.schedule.Algorithm(), w.schedule.Nodes(), w.schedule.Blocks(), err)
		}
	}
}

func (w *network) start(t testing.TB) {
	n := w.schedule.Nodes()
	w.sends, w.recvs = max(w.sends, 1), max(w.recvs, 1)
	w.hosts = make([]host, n)
	w.unfinished = n - 1
	for range 2 * n {
		w.wires = append(w.wires, wire{speed: 1})
	}
	if w.racks != nil {
		for range 2 * w.racks.Len() {
			w.wires = append(w.wires, wire{speed: w.uplink})
		}
	}
	for i := range w.hosts {
		h := &w.hosts[i]
		h.Node = node(t, w.schedule, i)
		h.next, h.sending = h.NextSend(-1)
		h.last, h.more = -1, true
		h.holds = make([]float64, w.schedule.Blocks())
		for b := range h.holds {
			if i > 0 {
				h.holds[b] = math.Inf(1)
			}
		}
	}
	if w.pauseFor > 0 {
		w.wakes = append(w.wakes, w.pauseAt, w.pauseAt+w.pauseFor)
	}
}

func (w *network) paused(i int) bool {
	return i == w.pauseNode && w.now >= w.pauseAt && w.now < w.pauseAt+w.pauseFor
}

// receive lets node i see what came, and announce buffers for what comes next.
func (w *network) receive(i int) {
	h := &w.hosts[i]
	if w.paused(i) {
		return
	}
	for _, x := range h.came {
		h.posted = slices.DeleteFunc(h.posted, func(r Transfer) bool { return r.Step == x.Step })
		h.holds[x.Block] = w.now + w.relay
		if w.relay > 0 {
			w.wakes = append(w.wakes, w.now+w.relay)
		}
		if h.received++; h.received == w.schedule.Blocks() {
			w.unfinished--
		}
	}
	h.came = h.came[:0]
	for h.more && len(h.posted) < w.recvs {
		var x Transfer
		if x, h.more = h.NextRecv(h.last); h.more {
			h.last = x.Step
			h.posted = append(h.posted, x)
		}
	}
}

// send lets node i begin all sends that it can.
func (w *network) send(i int) {
	h := &w.hosts[i]
	for h.sending && h.underWay < w.sends && h.holds[h.next.Block] <= w.now && !w.paused(i) && w.awaited(i, h.next) {
		w.begin(i, h.next)
		h.underWay++
		h.next, h.sending = h.NextSend(h.next.Step)
	}
}

// awaited reports whether x's receiver has announced a buffer for it.
func (w *network) awaited(from int, x Transfer) bool {
	for _, r := range w.hosts[x.Peer].posted {
		if r.Peer == from && r.Block == x.Block {
			return true
		}
	}
	return false
}

func (w *network) begin(from int, x Transfer) {
	n := w.schedule.Nodes()
	f := &flow{from: from, Transfer: x, left: 1, limit: 1, wires: []int{from, n + x.Peer}}
	if w.speed != nil {
		f.limit = w.speed(from, x.Peer)
	}
	if r := w.racks; r != nil && r.Rack(from) != r.Rack(x.Peer) {
		f.wires = append(f.wires, 2*n+r.Rack(from), 2*n+r.Len()+r.Rack(x.Peer))
	}
	for _, i := range f.wires {
		w.wires[i].flows++
	}
	w.flows = append(w.flows, f)
}

func (w *network) rate(f *flow) float64 {
	r := f.limit
	for _, i := range f.wires {
		r = min(r, w.wires[i].speed/float64(w.wires[i].flows))
	}
	return r
}

const soon = 1e-9 // what is this near counts as now

// advance moves to the time of the next event, and processes it.
func (w *network) advance() error {
	next := math.Inf(1)
	for _, f := range w.flows {
		next = min(next, w.now+f.left/w.rate(f))
	}
	for _, at := range w.wakes {
		next = min(next, at)
	}
	if math.IsInf(next, 1) {
		return fmt.Errorf("deadlock at %v, with %d nodes unfinished", w.now, w.unfinished)
	}
	passed := next - w.now
	for _, f := range w.flows {
		f.left -= passed * w.rate(f)
	}
	w.now = next
	w.wakes = slices.DeleteFunc(w.wakes, func(at float64) bool { return at <= w.now })
	w.flows = slices.DeleteFunc(w.flows, func(f *flow) bool {
		if f.left > soon {
			return false
		}
		w.end(f)
		return true
	})
	return nil
}

func (w *network) end(f *flow) {
	for _, i := range f.wires {
		w.wires[i].flows--
	}
	w.hosts[f.from].underWay--
	h := &w.hosts[f.Peer]
	h.came = append(h.came, Transfer{Step: f.Step, Block: f.Block, Peer: f.from})
}
