package rc

import (
	"testing"
	"time"
)

const gbit = 1e9

func newReaction(p CCParams) *reactionPoint {
	var c reactionPoint
	c.init(p)
	return &c
}

// drain sends packets of n bytes as fast as the limiter allows from now until
// end and returns the bits sent.
func drain(c *reactionPoint, now, end time.Duration, n int) (bits float64) {
	for now < end {
		if !c.allow(now) {
			now = max(now+1, c.nextSend())
			continue
		}
		c.sent(n, now)
		bits += float64(n+70) * 8 // 70 bytes below the BTH, and gaps
		if !c.active {
			now += time.Duration(float64(n+70) * 8 / c.p.LineRate * 1e9)
		}
	}
	return bits
}

func TestReactionPointIsSilentWithoutCNP(t *testing.T) {
	c := newReaction(CCParams{LineRate: gbit})
	for range 1000 {
		if !c.allow(0) {
			t.Fatal("limited before any CNP")
		}
		c.sent(4096, 0)
	}
}

func TestReactionPointCutsAndRecovers(t *testing.T) {
	c := newReaction(CCParams{LineRate: 10 * gbit})
	c.notified(0)
	if c.rate != 5*gbit {
		t.Fatalf("first CNP at alpha 1: rate %v, want half of the line rate", c.rate)
	}
	c.notified(time.Microsecond)
	if c.rate != 5*gbit {
		t.Fatalf("a CNP within the reduce period cut again: %v", c.rate)
	}
	c.notified(5 * time.Microsecond)
	if c.rate > 2.51*gbit || c.rate < 2.49*gbit {
		t.Fatalf("second CNP: rate %v, want a quarter", c.rate)
	}
	// Fast recovery: four increases halve the distance to the target, 5 Gb/s.
	c.catchUp(5*time.Microsecond + 4*c.p.TimeReset)
	if want := 5*gbit - 2.5*gbit/16; c.rate < 0.99*want || c.rate > 1.01*want {
		t.Fatalf("after four fast recovery steps: %v, want %v", c.rate, want)
	}
	// Without further CNPs it ends at line rate and stops limiting.
	for now := time.Duration(0); c.active; now += 55 * time.Microsecond {
		c.catchUp(now)
		if now > time.Second {
			t.Fatalf("still limited to %v after a second", c.rate)
		}
	}
}

func TestReactionPointSendsAtItsRate(t *testing.T) {
	c := newReaction(CCParams{LineRate: 10 * gbit, TimeReset: time.Hour, ByteReset: 1 << 40})
	c.notified(0)
	const span = 10 * time.Millisecond
	got := drain(c, 0, span, 1040) / span.Seconds()
	if want := c.rate; got < 0.98*want || got > 1.02*want {
		t.Errorf("sent at %.3g b/s, limited to %.3g", got, want)
	}
}

func TestReactionPointFloorAndIdle(t *testing.T) {
	c := newReaction(CCParams{LineRate: gbit, MinRate: 1e8})
	for i := range 1000 {
		c.notified(time.Duration(i) * 10 * time.Microsecond)
	}
	if c.rate != 1e8 {
		t.Errorf("rate %v, want the minimum", c.rate)
	}
	if c.catchUp(time.Hour); c.active {
		t.Error("limited after an hour of silence")
	}
	d := newReaction(CCParams{Disable: true})
	if d.notified(0); d.active {
		t.Error("disabled, but obeys a CNP")
	}
}

// TestTwoFlowsShareFairly runs two senders through one bottleneck that marks
// when its queue is long: from very different rates they must come to equal
// shares, which is what DCQCN is for.
func TestTwoFlowsShareFairly(t *testing.T) {
	const (
		size    = 1114 // bytes on the wire
		link    = gbit
		mark    = 50_000 // bytes of queue
		horizon = 2 * time.Second
	)
	p := CCParams{LineRate: gbit, AIRate: 5e6, HAIRate: 10e6}
	flows := [2]*reactionPoint{newReaction(p), newReaction(p)}
	var np [2]notificationPoint
	for i := range np {
		np[i].init(p)
	}
	var queue float64
	var bits, late [2]float64
	var last time.Duration
	var next [2]time.Duration
	for now := time.Duration(0); now < horizon; now += time.Microsecond {
		queue = max(0, queue-link/8*(now-last).Seconds())
		last = now
		for i, c := range flows {
			if i == 1 && now < horizon/10 { // the second joins later
				continue
			}
			if now < next[i] || !c.allow(now) {
				continue
			}
			next[i] = now + time.Duration(size*8/link*1e9)
			c.sent(size-70, now)
			queue += size
			if bits[i] += size * 8; now > horizon/2 {
				late[i] += size * 8
			}
			if queue > mark {
				if np[i].marked(now); np[i].take() {
					c.notified(now)
				}
			}
		}
	}
	share := late[0] / (late[0] + late[1])
	util := (late[0] + late[1]) / (link * (horizon / 2).Seconds())
	t.Logf("shares %.2f and %.2f, utilisation %.2f", share, 1-share, util)
	if share < 0.4 || share > 0.6 || util < 0.8 {
		t.Errorf("shares %.2f and %.2f, utilisation %.2f", share, 1-share, util)
	}
}

func TestNotificationPointPaces(t *testing.T) {
	var n notificationPoint
	n.init(CCParams{})
	cnps := 0
	for now := time.Duration(0); now < time.Millisecond; now += time.Microsecond {
		n.marked(now)
		if n.take() {
			cnps++
		}
	}
	if cnps != 20 {
		t.Errorf("%d CNPs in 1 ms of marked packets, want one every 50 µs", cnps)
	}
}
