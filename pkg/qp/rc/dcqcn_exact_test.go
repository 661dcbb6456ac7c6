package rc

import (
	"math"
	"testing"
	"time"
)

// near reports whether two rates, or two alphas, are equal up to rounding.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }

// TestDefaults: the parameters of the DCQCN paper and of mlx5, written out a second time.
func TestDefaults(t *testing.T) {
	want := CCParams{LineRate: 40_000_000_000, MinRate: 10_000_000, AIRate: 40_000_000, HAIRate: 400_000_000, G: 0.00390625,
		AlphaPeriod: 55_000, TimeReset: 55_000, ByteReset: 10_485_760, Threshold: 5, ReducePeriod: 4_000, CNPInterval: 50_000, Burst: 50_000}
	if got := (CCParams{}).withDefaults(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := (CCParams{LineRate: 5e6}).withDefaults(); got.MinRate != 5e6 {
		t.Errorf("a minimum of %v on a line of 5 Mb/s", got.MinRate)
	}
}

// TestStages follows the rate through all phases of recovery, by time and by bytes.
func TestStages(t *testing.T) {
	const us = time.Microsecond
	c := newReaction(CCParams{LineRate: 10 * gbit, AlphaPeriod: 20 * us, TimeReset: 55 * us, ByteReset: 10_000, Threshold: 3})
	c.notified(0)
	if c.rate != 5*gbit || c.target != 10*gbit || c.alpha != 1 {
		t.Fatalf("%+v", c)
	}
	c.notified(4*us - 1)
	if c.rate != 5*gbit {
		t.Error("cut twice within the reduce period")
	}
	// Alpha fades after each period, and the next cut is smaller for it.
	c.notified(40 * us)
	alpha := 255.0 / 256 * 255 / 256
	rate := 5 * gbit * (1 - alpha/2)
	if alpha = 255.0/256*alpha + 1.0/256; !near(c.alpha, alpha) || !near(c.rate, rate) || c.target != 5*gbit {
		t.Fatalf("alpha %v, want %v; rate %v, want %v", c.alpha, alpha, c.rate, rate)
	}
	target := 5 * gbit
	step := func(now time.Duration, more float64, what string) {
		t.Helper()
		if c.catchUp(now - 1); !near(c.rate, rate) {
			t.Errorf("%s: rate %v before the time, want %v", what, c.rate, rate)
		}
		target += more
		rate = (rate + target) / 2
		if c.catchUp(now); !near(c.rate, rate) || !near(c.target, target) {
			t.Errorf("%s: rate %v and target %v, want %v and %v", what, c.rate, c.target, rate, target)
		}
	}
	step(95*us, 0, "fast recovery")
	step(150*us, 0, "fast recovery")
	step(205*us, 40e6, "additive increase")
	step(260*us, 40e6, "additive increase")
	left := 10_000 // bytes until the rate increases
	sent := func(more float64, what string) {
		t.Helper()
		c.sent(left-1-70, 260*us)
		if !near(c.rate, rate) {
			t.Errorf("%s: rate %v a byte too soon", what, c.rate)
		}
		target += more
		rate = (rate + target) / 2
		left = 10_000 - 99
		if c.sent(100-70, 260*us); !near(c.rate, rate) || !near(c.target, target) {
			t.Errorf("%s: rate %v and target %v, want %v and %v", what, c.rate, c.target, rate, target)
		}
	}
	sent(40e6, "additive increase")
	sent(40e6, "additive increase")
	sent(400e6, "hyper increase")
	step(315*us, 400e6, "hyper increase")

	// A cut restarts the stages and the periods.
	c.notified(320 * us)
	target, rate = rate, c.rate
	step(375*us, 0, "fast recovery")
	left = 10_000
	sent(0, "fast recovery")

	// No two cuts within the reduce period, which is 4 µs.
	c.notified(400 * us)
	rate = c.rate
	if c.notified(404*us - 1); c.rate != rate {
		t.Error("cut twice within the reduce period")
	}
	if c.notified(404 * us); c.rate >= rate {
		t.Error("not cut after the reduce period")
	}
}

// TestSpacing: packets are sent no sooner than the rate allows, except for a burst.
func TestSpacing(t *testing.T) {
	c := newReaction(CCParams{LineRate: 2 * gbit, TimeReset: time.Second, AlphaPeriod: time.Second, Burst: 10 * time.Microsecond})
	if c.nextSend() != 0 {
		t.Errorf("limited to %v before any CNP", c.nextSend())
	}
	now := time.Millisecond
	c.notified(now)
	for i := range 4 { // at 1 Gb/s; the burst is two packets' time and a half
		if want := now + time.Duration(i)*4*time.Microsecond; c.free != want || c.allow(now) != (i < 3) {
			t.Errorf("packet %d: free at %v, want %v; allowed: %v", i, c.free, want, c.allow(now))
		}
		if i < 3 {
			c.sent(500-70, now)
		}
	}
	at := c.nextSend()
	if at != now+2*time.Microsecond || c.allow(at-1) || !c.allow(at) {
		t.Errorf("the fourth packet may go at %v", at)
	}
	// What was not used in time is no credit.
	now += time.Millisecond
	if c.sent(500-70, now); c.free != now+4*time.Microsecond {
		t.Errorf("free at %v, it is %v", c.free, now)
	}
}

// TestIdle: a sender that was idle for ten thousand periods is at line rate, or one whose rate is
// 99.9 % of it.
func TestIdle(t *testing.T) {
	p := CCParams{LineRate: gbit, MinRate: 1, TimeReset: time.Microsecond, AIRate: 1, HAIRate: 1, Threshold: 1}
	c := newReaction(p)
	for i := range 100 {
		c.notified(time.Duration(i) * 4 * time.Microsecond)
	}
	last := c.lastTime
	if c.catchUp(last + 10_000*time.Microsecond); !c.active {
		t.Fatal("not limited after ten thousand periods")
	}
	c.lastTime = last
	if c.catchUp(last + 10_000*time.Microsecond + 1); c.active {
		t.Error("limited after more than ten thousand periods")
	}
	c = newReaction(CCParams{LineRate: gbit})
	c.notified(0)
	c.sent(1<<20, 0)
	for i := 1; i <= 9; i++ { // halfway to the line rate with each: 1 - 2⁻¹⁰ after nine
		if !c.active {
			t.Errorf("not limited after %d periods", i-1)
		}
		c.catchUp(time.Duration(i) * 55 * time.Microsecond)
	}
	if c.active || c.nextSend() != 0 || !c.allow(495*time.Microsecond) {
		t.Errorf("limited to %v, and until %v", c.rate, c.nextSend())
	}

	// From then on a CNP finds all as at first.
	c = newReaction(CCParams{LineRate: gbit})
	for i := range 100 {
		c.notified(time.Duration(i) * 4 * time.Microsecond)
	}
	c.notified(time.Hour)
	if c.rate != gbit/2 || c.target != gbit || c.free != time.Hour {
		t.Errorf("after an hour: %+v", c)
	}

	// 99.9 % are enough.
	c = newReaction(CCParams{LineRate: 1000, MinRate: 998})
	if c.notified(0); c.rate != 998 {
		t.Fatalf("rate %v", c.rate)
	}
	if c.catchUp(55 * time.Microsecond); c.rate != 999 || c.active {
		t.Errorf("limited to %v of 1000", c.rate)
	}
}

// TestNotificationPoint: the first marked packet has a CNP, and one after each interval.
func TestNotificationPoint(t *testing.T) {
	var n notificationPoint
	n.init(CCParams{CNPInterval: 10})
	for _, c := range []struct {
		now time.Duration
		cnp bool
	}{{0, true}, {9, false}, {10, true}, {19, false}, {100, true}} {
		if n.marked(c.now); n.take() != c.cnp || n.take() {
			t.Errorf("at %d: CNP is not %v", c.now, c.cnp)
		}
	}
	n.init(CCParams{Disable: true})
	if n.marked(1000); n.take() {
		t.Error("disabled, and sends CNPs")
	}
}
