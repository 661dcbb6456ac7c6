package softroce

import (
	"slices"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A crowd is a device with many queue pairs that send, in a bubble.
type crowd struct {
	t    *testing.T
	wire *wire
	dev  *Device
	of   map[rocev2.QPN]*station // by the peer's number
	all  []*station
}

const crowdTimeout = 15 // 134 ms

func newCrowd(t *testing.T, size, window int) *crowd {
	c := &crowd{t: t, wire: newWire(), of: map[rocev2.QPN]*station{}}
	c.dev = onLink(t, c.wire, Options{Window: window, CC: rc.CCParams{LineRate: 1e12, TimeReset: time.Hour, AlphaPeriod: time.Hour}})
	for i := range size {
		s := newStationOn(t, c.wire, c.dev, qp.Init{})
		s.attr.Timeout = crowdTimeout
		n := rocev2.QPN(0x1000 + i)
		s.up(peerAddr, n)
		c.of[n], c.all = s, append(c.all, s)
	}
	return c
}

// sent returns of what the device has sent how many packets are each queue pair's, in the order
// of their first, and the last of them.
func (c *crowd) sent() (who []*station, packets map[*station]int, last map[*station]rocev2.PSN) {
	time.Sleep(time.Microsecond) // the timer goroutine sends, too
	packets, last = map[*station]int{}, map[*station]rocev2.PSN{}
	for _, p := range c.wire.take() {
		s := c.of[p.DestQP]
		if packets[s] == 0 {
			who = append(who, s)
		}
		packets[s]++
		last[s] = p.PSN
	}
	return who, packets, last
}

func (c *crowd) post(s *station, packets int) {
	s.send(qp.SendWR{ID: 1, Opcode: qp.OpSend, SGEs: []qp.SGE{s.mr.SGE(0, packets*1024)}})
}

// However many queue pairs send, a bound is on its way, they take turns in the order in which
// they began, and those that wait need no retransmission.
func TestCrowdTakesTurns(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCrowd(t, 40, leastOpen)
		for _, s := range c.all {
			c.post(s, 2*burst)
		}
		turns, done := map[*station]int{}, 0
		for round := 0; done < len(c.all); round++ {
			who, packets, last := c.sent()
			n := 0
			for _, s := range who {
				n += packets[s]
				if turns[s]++; turns[s] > 1 && len(turns) < len(c.all) {
					t.Fatalf("round %d: one has its second turn, and only %d had one", round, len(turns))
				}
			}
			if n == 0 || n > leastOpen {
				t.Fatalf("round %d: %d packets", round, n)
			}
			time.Sleep(20 * time.Millisecond)
			for _, s := range who {
				s.respond(last[s], rocev2.AckNoLimit)
				var wc [1]qp.WC
				if k, _ := s.cq.Poll(wc[:]); k == 1 {
					if wc[0].Status != qp.StatusSuccess {
						t.Fatalf("%+v", wc[0])
					}
					done++
				}
			}
		}
		if n := c.dev.Counters()["rc_timeouts"]; n != 0 {
			t.Errorf("%d timeouts", n)
		}
		if c.dev.limiter.used != 0 || len(c.dev.limiter.queue) != 0 {
			t.Errorf("%d packets and %d queue pairs are left", c.dev.limiter.used, len(c.dev.limiter.queue))
		}
	})
}

// A queue pair whose packets are lost asks at once whether the path works, and is no burden for
// others. What a queue pair has comes back when it fails, or is closed.
func TestCrowdBesideADeadPeer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCrowd(t, 4, leastOpen)
		dead, closed, live, later := c.all[0], c.all[1], c.all[2], c.all[3]
		c.post(dead, 2*burst)
		c.post(closed, burst)
		c.post(live, burst)
		if who, _, _ := c.sent(); len(who) != 1 || who[0] != dead {
			t.Fatalf("%d send", len(who))
		}
		if s, _ := live.qp.(qp.Silencer).Silence(); s != 0 {
			t.Errorf("one that has sent nothing hears nothing for %v", s)
		}
		time.Sleep(100 * time.Millisecond)
		if s, _ := dead.qp.(qp.Silencer).Silence(); s < 100*time.Millisecond || s > 101*time.Millisecond {
			t.Errorf("nothing is acknowledged for %v", s)
		}
		if err := closed.qp.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(35 * time.Millisecond) // the timeout
		who, packets, last := c.sent()
		if packets[live] != burst || packets[dead] != 1 && packets[dead] != 1+burst || len(who) != 2 {
			t.Fatalf("after a timeout: %v", packets)
		}
		live.respond(last[live], rocev2.AckNoLimit)
		live.want(1, qp.StatusSuccess)
		dead.want(1, qp.StatusRetryExcErr)
		if c.post(later, burst); c.dev.limiter.used != burst {
			t.Errorf("%d packets are on their way", c.dev.limiter.used)
		}
		if err := later.qp.Close(); err != nil || c.dev.limiter.used != 0 {
			t.Errorf("closed, and %d packets are on their way: %v", c.dev.limiter.used, err)
		}
	})
}

// A queue pair that would wait for ever for an answer leaves the bound to the others.
func TestCrowdBesideOneWithoutTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCrowd(t, 1, leastOpen)
		patient, other := newStationOn(t, c.wire, c.dev, qp.Init{}), c.all[0]
		patient.up(peerAddr, peerQPN)
		c.of[peerQPN] = patient
		c.post(patient, 2*leastOpen)
		c.post(other, burst)
		if _, packets, _ := c.sent(); packets[patient] != leastOpen || packets[other] != burst {
			t.Errorf("%d and %d packets", packets[patient], packets[other])
		}
	})
}

// A queue pair that congestion control limits leaves the bound to the others, and slow
// acknowledgements of it say nothing of this host.
func TestCrowdBesideCongestion(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCrowd(t, 2, 2*leastOpen)
		paced, other := c.all[0], c.all[1]
		limit := func() (used, bound int) {
			c.dev.limiter.mu.Lock()
			defer c.dev.limiter.mu.Unlock()
			return c.dev.limiter.used, c.dev.limiter.bound
		}
		time.Sleep(time.Second) // the bound is halved once in that time
		c.post(paced, 2*leastOpen)
		c.post(other, burst)
		_, packets, last := c.sent()
		if packets[paced] != 2*leastOpen || packets[other] != 0 {
			t.Fatalf("%d and %d packets", packets[paced], packets[other])
		}
		c.wire.deliver(paced.packet(rocev2.CNP, nil, func(h *rocev2.Headers) { h.BECN = true }))
		_, packets, others := c.sent()
		if used, _ := limit(); packets[other] != burst || used != burst {
			t.Errorf("%d packets of the other, %d of the bound are used", packets[other], used)
		}
		other.respond(others[other], rocev2.AckNoLimit)
		time.Sleep(100 * time.Millisecond)
		paced.respond(last[paced], rocev2.AckNoLimit)
		if used, bound := limit(); used != 0 || bound != 2*leastOpen {
			t.Errorf("%d packets of %d are used", used, bound)
		}
	})
}

// A queue pair that congestion control has limited of late is not limited by the bound: its rate
// may have recovered because the bound was less.
func TestCrowdAfterCongestion(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCrowd(t, 2, 2*leastOpen)
		c.dev.opt.CC = rc.CCParams{}
		s, other := newStationOn(t, c.wire, c.dev, qp.Init{}), c.all[0]
		s.attr.Timeout = crowdTimeout
		s.up(peerAddr, peerQPN)
		c.of[peerQPN] = s
		time.Sleep(time.Millisecond)
		send := func() int {
			c.post(other, 2*leastOpen)
			c.post(s, burst)
			_, packets, last := c.sent()
			other.respond(last[other], rocev2.AckNoLimit)
			if packets[s] == 0 {
				_, _, last = c.sent()
			}
			s.respond(last[s], rocev2.AckNoLimit)
			s.want(1, qp.StatusSuccess)
			other.want(1, qp.StatusSuccess)
			return packets[s]
		}
		if n := send(); n != 0 {
			t.Errorf("%d packets before congestion", n)
		}
		c.wire.deliver(s.packet(rocev2.CNP, nil, func(h *rocev2.Headers) { h.BECN = true }))
		for range 100 {
			time.Sleep(10 * time.Millisecond)
			if n := send(); n != burst {
				t.Fatalf("%d packets after congestion", n)
			}
		}
		q := s.qp.(*QP)
		q.mu.Lock()
		paced := q.rc.Flight(c.dev.now()).Paced
		q.mu.Unlock()
		if paced {
			t.Fatal("the rate has not recovered")
		}
		time.Sleep(pacedFor)
		if n := send(); n != 0 {
			t.Errorf("%d packets long after congestion", n)
		}
	})
}

// Slow acknowledgements make the bound smaller, and timers wait longer, up to three times;
// quick ones undo it.
func TestCrowdLearns(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCrowd(t, 1, 512)
		s, l := c.all[0], &c.dev.limiter
		answer := func(after time.Duration) {
			c.post(s, burst)
			time.Sleep(after)
			var wc [1]qp.WC
			for n := 0; n == 0; n, _ = s.cq.Poll(wc[:]) { // the window may be small after a loss
				_, _, last := c.sent()
				s.respond(last[s], rocev2.AckNoLimit)
			}
			if wc[0].Status != qp.StatusSuccess {
				t.Fatalf("%+v", wc[0])
			}
		}
		answer(time.Millisecond)
		if l.bound != 512 {
			t.Errorf("bound %d", l.bound)
		}
		timeout := qp.AckTimeout(crowdTimeout)
		for range 10 {
			answer(timeout - time.Millisecond)
		}
		if l.bound != leastOpen {
			t.Errorf("bound %d", l.bound)
		}
		answer(2*timeout - 20*time.Millisecond)
		answer(3*timeout - time.Millisecond)
		if n := c.dev.Counters()["rc_timeouts"]; n != 0 {
			t.Errorf("%d timeouts", n)
		}
		answer(3*timeout + time.Millisecond)
		if n := c.dev.Counters()["rc_timeouts"]; n != 1 {
			t.Errorf("%d timeouts", n)
		}
		time.Sleep(slowFades)
		answer(timeout + time.Millisecond) // sent again: it may be the first or the second that is answered
		if _, p := s.qp.(qp.Silencer).Silence(); p > 5*time.Millisecond {
			t.Errorf("patience %v", p)
		}
		for range 600 {
			answer(0)
		}
		if _, p := s.qp.(qp.Silencer).Silence(); p > 5*time.Millisecond {
			t.Errorf("patience %v", p)
		}
		if l.bound <= leastOpen+100 {
			t.Errorf("bound %d", l.bound)
		}
	})
}

// A queue pair goes on when all that it has sent is acknowledged while it sends, and it stops
// sending so that others can.
func TestAckedWhileSending(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const window = 8
		c := newCrowd(t, 1, window)
		s := c.all[0]
		c.wire.setOnSend(func(batch []link.Tx) error {
			var h rocev2.Headers
			if _, err := h.Parse(slices.Concat(batch[len(batch)-1].Parts...)); err != nil {
				t.Error(err)
			}
			s.respond(h.PSN, rocev2.AckNoLimit)
			return nil
		})
		c.post(s, (maxBatches+1)*window)
		s.want(1, qp.StatusSuccess)
	})
}
