package rc

import "time"

// CCParams are the DCQCN parameters, with the names of mlx5's cc_params. A zero field means its
// default. The defaults are those of the DCQCN paper (Zhu et al., SIGCOMM 2015, §5), not scaled to
// the link: rates are absolute.
type CCParams struct {
	// Disable turns off both the reaction and the notification point: no CNPs are sent, and
	// received ones are ignored.
	Disable bool

	LineRate     float64       // initial and maximum rate, bits per second; default 40e9
	MinRate      float64       // rp_min_rate, bits per second; default 10e6
	AIRate       float64       // rp_ai_rate, additive increase step, bits per second; default 40e6
	HAIRate      float64       // rp_hai_rate, hyper increase step, bits per second; default 400e6
	G            float64       // rp_dce_tcp_g, the gain of alpha; default 1/256
	AlphaPeriod  time.Duration // rp_dce_tcp_rtt, default 55 µs
	TimeReset    time.Duration // rp_time_reset, increase timer; default 55 µs
	ByteReset    int           // rp_byte_reset, increase byte counter, bytes; default 10 MB
	Threshold    int           // rp_threshold, fast-recovery stages; default 5
	ReducePeriod time.Duration // rate_reduce_monitor_period, at most one rate cut per period; default 4 µs

	// CNPInterval is np_min_time_between_cnps; default 50 µs.
	CNPInterval time.Duration

	// Burst is how far, in time at the current rate, sending may run ahead of even spacing, so that
	// the caller's timer need not be exact; default 50 µs.
	Burst time.Duration
}

func (c CCParams) withDefaults() CCParams {
	def(&c.LineRate, 40e9)
	def(&c.MinRate, 10e6)
	def(&c.AIRate, 40e6)
	def(&c.HAIRate, 400e6)
	def(&c.G, 1.0/256)
	def(&c.AlphaPeriod, 55*time.Microsecond)
	def(&c.TimeReset, 55*time.Microsecond)
	def(&c.ReducePeriod, 4*time.Microsecond)
	def(&c.CNPInterval, 50*time.Microsecond)
	def(&c.Burst, 50*time.Microsecond)
	def(&c.ByteReset, 10<<20)
	def(&c.Threshold, 5)
	c.MinRate = min(c.MinRate, c.LineRate)
	return c
}

// A reactionPoint is the sender's side of DCQCN: a rate that every CNP cuts, and that recovers by
// timer and byte counter in three phases (fast recovery, additive increase, hyper increase). It
// does not limit before the first CNP, nor after the rate is back at the line rate.
//
// Its two periodic timers are evaluated when the rate is needed, not when they expire; between
// packets that makes no difference.
type reactionPoint struct {
	p      CCParams
	active bool

	rate, target float64 // Rc and Rt, bits per second
	alpha        float64

	lastCut, lastAlpha, lastTime time.Duration
	bytes                        int
	timeStages, byteStages       int

	free time.Duration // when the bytes sent so far have drained at the current rate
}

func (c *reactionPoint) init(p CCParams) { *c = reactionPoint{p: p.withDefaults()} }

// notified handles a CNP.
func (c *reactionPoint) notified(now time.Duration) {
	if c.p.Disable {
		return
	}
	if c.catchUp(now); !c.active {
		c.active = true
		c.rate, c.alpha, c.free = c.p.LineRate, 1, now
	} else if now-c.lastCut < c.p.ReducePeriod {
		return
	}
	c.target = c.rate
	c.rate = max(c.p.MinRate, c.rate*(1-c.alpha/2))
	c.alpha = (1-c.p.G)*c.alpha + c.p.G
	c.lastCut, c.lastAlpha, c.lastTime = now, now, now
	c.bytes, c.timeStages, c.byteStages = 0, 0, 0
}

// allow reports whether a packet may be sent at now.
func (c *reactionPoint) allow(now time.Duration) bool {
	c.catchUp(now)
	return now >= c.nextSend()
}

// nextSend returns when the next packet may be sent, or 0 if the rate is not limited.
func (c *reactionPoint) nextSend() time.Duration {
	if !c.active {
		return 0
	}
	return max(0, c.free-c.p.Burst)
}

// sent accounts for a packet of n bytes above IP. It adds the lower headers and Ethernet's gaps.
func (c *reactionPoint) sent(n int, now time.Duration) {
	if !c.active {
		return
	}
	const below = 4 + 8 + 20 + 14 + 4 + 20 // ICRC, UDP, IPv4, Ethernet, FCS, preamble and gap
	n += below
	c.free = max(c.free, now) + time.Duration(float64(n)*8/c.rate*1e9)
	if c.bytes += n; c.bytes >= c.p.ByteReset {
		c.bytes -= c.p.ByteReset
		c.byteStages++
		c.increase()
	}
}

// catchUp processes all timer expiries until now. A sender that was idle for longer than any
// recovery takes is at line rate.
func (c *reactionPoint) catchUp(now time.Duration) {
	const longIdle = 10_000 // periods
	if now-c.lastTime > longIdle*c.p.TimeReset {
		c.active = false
	}
	for ; c.active && now-c.lastAlpha >= c.p.AlphaPeriod && c.alpha > 1e-6; c.lastAlpha += c.p.AlphaPeriod {
		c.alpha *= 1 - c.p.G
	}
	for ; c.active && now-c.lastTime >= c.p.TimeReset; c.lastTime += c.p.TimeReset {
		c.timeStages++
		c.increase()
	}
}

// increase is one step of recovery.
func (c *reactionPoint) increase() {
	switch f := c.p.Threshold; {
	case max(c.timeStages, c.byteStages) < f: // fast recovery: halfway back to the target
	case min(c.timeStages, c.byteStages) >= f:
		c.target += c.p.HAIRate
	default:
		c.target += c.p.AIRate
	}
	c.target = min(c.target, c.p.LineRate)
	c.rate = (c.rate + c.target) / 2
	if c.rate >= 0.999*c.p.LineRate {
		c.active = false
	}
}

// A notificationPoint is the receiver's side of DCQCN: it answers packets marked Congestion
// Experienced with at most one CNP per interval.
type notificationPoint struct {
	p    CCParams
	due  bool
	sent bool // a CNP was sent, at last
	last time.Duration
}

func (n *notificationPoint) init(p CCParams) { n.p = p.withDefaults() }

func (n *notificationPoint) marked(now time.Duration) {
	if n.p.Disable || n.sent && now-n.last < n.p.CNPInterval {
		return
	}
	n.due, n.sent, n.last = true, true, now
}

func (n *notificationPoint) take() bool {
	due := n.due
	n.due = false
	return due
}
