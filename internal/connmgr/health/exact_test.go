package health

import (
	"net/netip"
	"testing"
	"time"
)

const ms = time.Millisecond

// A clock ticks a tracker of two peers every 100 ms, while nothing is late.
type clock struct {
	*Tracker
	now, start time.Time
	own        bool // the caller's host is busy
}

var a, b = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")

func newClock() *clock {
	c := &clock{Tracker: New(Config{Interval: 100 * ms, DeadAfter: time.Second, Grace: 10 * time.Second}), now: time.Unix(1000, 0)}
	c.start = c.now
	c.Add(a, c.now)
	c.Add(b, c.now)
	return c
}

// until ticks up to a time, and exactly then. Each time, peer b answers first.
func (c *clock) until(at time.Duration) {
	for end := c.start.Add(at); c.now.Before(end); {
		c.now = c.now.Add(min(100*ms, end.Sub(c.now)))
		c.Answered(b, c.now)
		c.Tick(c.now, c.own)
	}
}

// A peer's state changes exactly when the comment of the package says.
func TestExactly(t *testing.T) {
	for name, c := range map[string]struct {
		before func(c *clock)
		at     time.Duration
		was    State
		is     State
	}{
		"silent after half":             {nil, 500 * ms, OK, Silent},
		"gone after DeadAfter":          {nil, time.Second, Silent, Gone},
		"silent, after 200 ms once":     {func(c *clock) { c.until(200 * ms); c.Answered(a, c.now) }, 1000 * ms, OK, Silent},
		"gone, after 200 ms once":       {func(c *clock) { c.until(200 * ms); c.Answered(a, c.now) }, 1800 * ms, Silent, Gone},
		"gone, after long silence once": {func(c *clock) { c.until(900 * ms); c.Answered(a, c.now) }, 3900 * ms, Silent, Gone},
		"busy":                          {func(c *clock) { c.Busy(a, true) }, 3 * time.Second, Silent, Gone},
		"no more busy":                  {func(c *clock) { c.Busy(a, true); c.Busy(a, false) }, time.Second, Silent, Gone},
		"the caller busy since":         {func(c *clock) { c.own = true; c.until(100 * ms); c.own = false }, 3 * time.Second, Silent, Gone},
		"the caller busy before": {func(c *clock) {
			c.own = true
			c.until(100 * ms)
			c.own = false
			c.Answered(a, c.now)
			c.Busy(a, false)
		}, 1100 * ms, Silent, Gone},
		"refused once":         {func(c *clock) { c.until(100 * ms); c.Refused(a, c.now) }, 600 * ms, Down, Silent},
		"gone after a refusal": {func(c *clock) { c.until(100 * ms); c.Refused(a, c.now) }, 1100 * ms, Silent, Gone},
		"gone after Grace": {func(c *clock) {
			for i := range time.Duration(99) {
				c.until((i + 1) * 100 * ms)
				c.Refused(a, c.now)
			}
		}, 10 * time.Second, Down, Gone},
		// A quarter of Interval late is not late; a nanosecond more is, and no silence.
		"a bit late": {func(c *clock) { c.now = c.now.Add(125 * ms); c.Tick(c.now, c.own) }, time.Second, Silent, Gone},
		"late":       {func(c *clock) { c.now = c.now.Add(126 * ms); c.Tick(c.now, c.own) }, 1026 * ms, Silent, Gone},
		// The caller's delay makes as patient as a silence, three times DeadAfter at most.
		"very late": {func(c *clock) { c.now = c.now.Add(100*ms + 9*time.Second); c.Tick(c.now, c.own); c.Answered(a, c.now) }, 12100 * ms, Silent, Gone},
		// Each answer takes away a part of 256.
		"fading": {func(c *clock) { c.until(300 * ms); c.Answered(a, c.now); c.Answered(a, c.now) }, 300*ms + 8*(300*ms-300*ms/256), Silent, Gone},
	} {
		t.Run(name, func(t *testing.T) {
			for at, want := range map[time.Duration]State{c.at - 1: c.was, c.at: c.is} {
				k := newClock()
				if c.before != nil {
					c.before(k)
				}
				if k.until(at); k.State(a) != want || k.State(b) != OK {
					t.Errorf("%v: %v, not %v; the other is %v", at, k.State(a), want, k.State(b))
				}
			}
		})
	}
}

// While the data path stalls, a peer is one of the suspects exactly when the comment says.
func TestExactlyInStall(t *testing.T) {
	both := []netip.Addr{a, b}
	for name, c := range map[string]struct {
		before func(c *clock)
		at     time.Duration
	}{
		"three beats":              {nil, 300 * ms},
		"busy":                     {func(c *clock) { c.Busy(a, true) }, 500 * ms},
		"slow":                     {func(c *clock) { c.until(200 * ms); c.Answered(a, c.now) }, 600 * ms},
		"acknowledged":             {func(c *clock) { c.until(200 * ms); c.Acknowledged(a, c.now, 50*ms) }, 450 * ms},
		"refused, but not of late": {func(c *clock) { c.until(100 * ms); c.Refused(a, c.now) }, 350 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			for at, want := range map[time.Duration]int{c.at - 1: 0, c.at: 1} {
				k := newClock()
				if c.before != nil {
					c.before(k)
				}
				k.until(at)
				if got := k.Suspects(both, k.now, false); len(got) != want || want > 0 && got[0].Addr != a {
					t.Errorf("%v: %v", at, got)
				}
			}
		})
	}
}

// A tracker follows the peers that were added and not removed.
func TestFollows(t *testing.T) {
	c := newClock()
	c.Remove(b)
	if !c.Follows(a) || c.Follows(b) {
		t.Errorf("it follows %v: %v, %v: %v", a, c.Follows(a), b, c.Follows(b))
	}
}
