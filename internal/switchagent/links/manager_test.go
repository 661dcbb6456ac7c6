package links

import (
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/routing/liveness"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

var seeds = flag.Uint64("links.seeds", 500, "how many random courses of detection to try")

func TestComesUp(t *testing.T) {
	s, a, b := newSim(t, 1), end{"A", 1}, end{"B", 1}
	s.connect(a, b)
	s.start("A", "B")
	s.run(time.Minute)
	s.want(a, Down, "B has not been heard")
	since := s.now
	s.start("B", "A")
	s.run(time.Millisecond) // three hellos, each answered at once
	s.want(a, Up, "")
	s.want(b, Up, "")
	s.wantEvents(a, "up=true B 02:42:00:00:00:01: ")
	s.wantEvents(b, "up=true A 02:41:00:00:00:01: ")
	st := s.state(a)
	if st.Peer != mac("B", 1) || st.Name != "B" || st.PeerPort != 1 || st.Expect != "B" || st.Since.Before(since) || !st.Since.Before(s.now) {
		t.Errorf("state %+v", st)
	}
	s.run(time.Hour)
	s.wantEvents(a)
	s.wantEvents(b)
}

// Every failure is noticed at both ends in less than 200 ms, whichever direction
// has failed and whenever, and the link comes back soon after it is mended.
func TestDetection(t *testing.T) {
	var detected, back []time.Duration
	for seed := range *seeds {
		s, a, b := two(t, seed)
		s.delay = func() time.Duration { return time.Duration(s.rng.Int64N(int64(2 * time.Millisecond))) }
		s.run(time.Second + time.Duration(s.rng.Int64N(int64(time.Second))))
		broken := map[end]bool{a: seed%3 != 0, b: seed%3 != 1} // one way, other way, both
		s.lose = func(from end) bool { return broken[from] }
		cut := s.now
		s.run(time.Second + time.Duration(s.rng.Int64N(int64(time.Second))))
		for _, at := range []end{a, b} {
			ev := s.events[at]
			if len(ev) != 1 || ev[0].Up {
				t.Fatalf("seed %d: %v had events %+v after the cut", seed, at, ev)
			}
			took := ev[0].at.Sub(cut)
			if took >= 200*time.Millisecond || took < 95*time.Millisecond {
				t.Errorf("seed %d: %v noticed the cut after %v", seed, at, took)
			}
			detected = append(detected, took)
			delete(s.events, at)
		}
		s.lose = func(end) bool { return false }
		mended := s.now
		s.run(time.Second)
		for _, at := range []end{a, b} {
			ev := s.events[at]
			if len(ev) != 1 || !ev[0].Up {
				t.Fatalf("seed %d: %v had events %+v after the mend", seed, at, ev)
			}
			took := ev[0].at.Sub(mended)
			if took > 500*time.Millisecond {
				t.Errorf("seed %d: %v came back after %v", seed, at, took)
			}
			back = append(back, took)
		}
	}
	for what, d := range map[string][]time.Duration{"noticed": detected, "back": back} {
		slices.Sort(d)
		t.Logf("%s: %d ends, least %v, median %v, 99%% %v, most %v", what, len(d), d[0], d[len(d)/2], d[len(d)*99/100], d[len(d)-1])
	}
}

// TestBackAtOnce: a switch whose hellos were lost for a while has its link back at once if it
// says so, whether or not it has found out what its neighbor thinks of the link.
func TestBackAtOnce(t *testing.T) {
	for seed := range uint64(20) {
		for away, state := range map[time.Duration]string{200 * time.Millisecond: Up, time.Second: Down} {
			s, a, b := newSim(t, seed), end{"A", 1}, end{"B", 1}
			s.connect(a, b)
			s.start("A", "B")
			s.startWith("B", Config{Name: "B", Multiplier: 6, Ports: []Port{{Number: 1, MAC: mac("B", 1), Expect: "A"}}}) // A waits longer
			s.run(time.Second)
			s.lose = func(end) bool { return true }
			s.run(away)
			if s.state(a).State != state || s.state(b).State != Down {
				t.Fatalf("seed %d: %+v, %+v", seed, s.state(a), s.state(b))
			}
			s.lose = func(end) bool { return false }
			s.nodes["A"].SendNow(s.now)
			s.tick("A")
			s.run(time.Millisecond)
			s.want(a, Up, "")
			s.want(b, Up, "")
		}
	}
}

func TestOneWayReasons(t *testing.T) {
	s, a, b := two(t, 2)
	s.lose = func(from end) bool { return from == a }
	s.run(time.Second)
	s.want(a, Init, "B port 1 is heard but has not said that it hears us")
	s.want(b, Down, "A port 1 was not heard for 150ms")
	s.wantEvents(a, "up=false B 02:42:00:00:00:01: B port 1 does not hear us any more")
	s.wantEvents(b, "up=false A 02:41:00:00:00:01: A port 1 was not heard for 150ms")
}

// Single losses and jitter bring no link down.
func TestLossAndJitter(t *testing.T) {
	for seed := range uint64(20) {
		s, a, b := two(t, seed)
		s.delay = func() time.Duration { return time.Duration(s.rng.Int64N(int64(20 * time.Millisecond))) }
		lost := map[end]bool{}
		s.lose = func(from end) bool {
			lost[from] = !lost[from] && s.rng.IntN(3) == 0
			return lost[from]
		}
		s.run(time.Minute)
		s.wantEvents(a)
		s.wantEvents(b)
	}
}

// Under any loss whatever, ends agree in the end, and a link is never up for an end
// that nothing reaches.
func TestHeavyLoss(t *testing.T) {
	for seed := range uint64(20) {
		s, a, b := two(t, seed)
		s.lose = func(end) bool { return s.rng.IntN(4) > 0 }
		s.run(30 * time.Second)
		if len(s.events[a]) == 0 {
			t.Errorf("seed %d: no event in 30 s with three of four hellos lost: the loss does not work", seed)
		}
		s.lose = func(end) bool { return false }
		s.run(time.Second)
		s.want(a, Up, "")
		s.want(b, Up, "")
	}
}

// The reason of a failure stays while the neighbor has not heard of it.
func TestReasonStays(t *testing.T) {
	s, a, _ := two(t, 18)
	m, b := s.nodes["A"], s.nodes["B"]
	s.lose = func(end) bool { return true }
	s.run(time.Second)
	s.want(a, Down, "B port 1 was not heard for 150ms")
	late := liveness.Hello{State: liveness.Up, DetectMult: 3, My: b.ports[0].discriminator, Your: m.ports[0].discriminator,
		DesiredMinTx: 50 * time.Millisecond, RequiredMinRx: 50 * time.Millisecond}
	if err := m.Receive(s.now, 1, appendHello(nil, mac("B", 1), late, 1, 0, "B", 0)); err != nil {
		t.Fatal(err)
	}
	s.want(a, Down, "B port 1 was not heard for 150ms")
}

func TestRestart(t *testing.T) {
	s, a, b := two(t, 9)
	s.start("B", "A") // killed and back at once: other discriminators
	s.run(time.Second)
	s.want(a, Up, "")
	s.want(b, Up, "")
	s.wantEvents(a, "up=false B 02:42:00:00:00:01: B port 1 has started anew", "up=true B 02:42:00:00:00:01: ")
	s.wantEvents(b, "up=true A 02:41:00:00:00:01: ")
}

func TestClose(t *testing.T) {
	s, a, b := two(t, 10)
	m := s.nodes["B"]
	last := m.Close(s.now, 0)
	if len(last) != 2 {
		t.Fatalf("%d last frames", len(last))
	}
	s.transmit("B", last)
	delete(s.nodes, "B")
	delete(s.next, "B")
	s.run(time.Millisecond)
	s.want(a, Down, "B port 1 holds the link down: it is shutting down, or expects another neighbor")
	s.run(time.Minute)
	s.wantEvents(a, "up=false B 02:42:00:00:00:01: B port 1 holds the link down: it is shutting down, or expects another neighbor")
	if st := m.States()[0]; st.State != Down || st.Reason != "closed" {
		t.Errorf("closed port is %+v", st)
	}
	if err := m.Receive(s.now, 1, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Receive after Close: %v", err)
	}
	if f, e, next := m.Tick(s.now); f != nil || e != nil || !next.IsZero() || m.Close(s.now, 0) != nil {
		t.Error("a closed manager does something")
	}
	s.start("B", "A")
	s.run(time.Second)
	s.want(b, Up, "")
}

func TestMACChange(t *testing.T) {
	s, a, _ := two(t, 12)
	now := switchspec.MAC{2, 9, 9, 9, 9, 9}
	s.mangle = func(from end, frame []byte) {
		if from.name == "B" {
			copy(frame[6:], now[:])
		}
	}
	s.run(time.Minute)
	s.want(a, Up, "the neighbor's MAC changed from 02:42:00:00:00:01 to 02:09:09:09:09:09")
	s.wantEvents(a, "up=true B 02:09:09:09:09:09: the neighbor's MAC changed from 02:42:00:00:00:01 to 02:09:09:09:09:09")
}

// A late call of Tick returns the events that still matter, and the port does not
// queue the rest.
func TestFlapsWithoutTick(t *testing.T) {
	s, _, b := two(t, 13)
	m := s.nodes["A"]
	p := m.ports[0]
	remote := liveness.Hello{State: liveness.Up, DetectMult: 3, My: s.nodes["B"].ports[0].discriminator, Your: p.discriminator,
		DesiredMinTx: 50 * time.Millisecond, RequiredMinRx: 50 * time.Millisecond}
	tell := func(st liveness.State) {
		remote.State = st
		if err := m.Receive(s.now, 1, appendHello(nil, mac("B", 1), remote, b.port, 0, "B", 0)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		tell(liveness.Down)
		if p.state != Down && p.state != Init {
			t.Fatalf("flap %d: %s", i, p.state)
		}
		if i%2 == 0 {
			tell(liveness.Init)
			if p.state != Up {
				t.Fatalf("flap %d: %s", i, p.state)
			}
		}
		if len(p.pending) > 2 || cap(p.pending) > 4 {
			t.Fatalf("flap %d: %d events held, room for %d", i, len(p.pending), cap(p.pending))
		}
	}
	tell(liveness.Down)
	_, events, _ := m.Tick(s.now)
	if len(events) != 1 || events[0].Up {
		t.Errorf("events %+v, want the last change", events)
	}
	tell(liveness.Init)
	tell(liveness.Down)
	tell(liveness.Init)
	if _, events, _ = m.Tick(s.now); len(events) != 1 || !events[0].Up {
		t.Errorf("events %+v, want the last change", events)
	}
	tell(liveness.Down)
	tell(liveness.Init)
	if _, events, _ = m.Tick(s.now); len(events) != 2 || events[0].Up || !events[1].Up {
		t.Errorf("events %+v, want down and up", events)
	}
	tell(liveness.Down)
	_ = m.Receive(s.now, 1, appendHello(nil, mac("C", 1), remote, b.port, 0, "C", 0))
	if _, events, _ = m.Tick(s.now); len(events) != 1 || events[0].Name != "C" {
		t.Errorf("events %+v, want one, of the wrong neighbor", events)
	}
}

func TestReceiveErrors(t *testing.T) {
	m := New(Config{Name: "A", Rand: steady(), Ports: []Port{{Number: 3, Expect: "B"}, {Number: 1, Expect: "C"}}}, time.Unix(0, 0))
	if got := m.States(); len(got) != 2 || got[0].Port != 1 || got[1].Expect != "B" {
		t.Fatalf("ports %+v", got)
	}
	live := liveness.Hello{State: liveness.Down, DetectMult: 3, My: 1, DesiredMinTx: time.Second, RequiredMinRx: time.Second}
	good := appendHello(nil, mac("B", 1), live, 1, 0, "B", 0)
	if err := m.Receive(m.now, 2, good); !errors.Is(err, ErrPort) {
		t.Errorf("unknown port: %v", err)
	}
	if err := m.Receive(m.now, 3, good[:41]); !errors.Is(err, ErrFrame) {
		t.Errorf("short: %v", err)
	}
	live.Your = 12345
	if err := m.Receive(m.now, 3, appendHello(nil, mac("B", 1), live, 1, 0, "B", 0)); !errors.Is(err, liveness.ErrNotOurs) {
		t.Errorf("of another session: %v", err)
	}
	if st := m.States()[1]; st.State != Down || st.Name != "" {
		t.Errorf("a hello that was refused changed %+v", st)
	}
	if err := m.Receive(m.now, 3, good); err != nil || m.States()[1].State != Init {
		t.Errorf("good one: %v, %+v", err, m.States()[1])
	}
}

// Whatever the interval and the multiplier, there is a manager.
func TestConfigBounds(t *testing.T) {
	now := time.Unix(5, 0)
	if f, e, next := New(Config{}, now).Tick(now); f != nil || e != nil || !next.IsZero() {
		t.Error("a manager without ports does something")
	}
	long := strings.Repeat("x", MaxName)
	for _, d := range []time.Duration{-time.Hour, -1, 0, 1, time.Second, time.Hour, 1<<63 - 1} {
		for _, mult := range []uint8{0, 1, 255} {
			m := New(Config{Name: long, Rand: steady(), Interval: d, Multiplier: mult, Ports: []Port{{Number: 1, MAC: mac("A", 1), Expect: long}}}, now)
			f, _, next := m.Tick(now)
			if len(f) != 1 || !next.After(now) || next.Sub(now) > time.Minute {
				t.Errorf("interval %v, multiplier %d: %d frames, next after %v", d, mult, len(f), next.Sub(now))
			}
			h, err := parseHello(f[0].Bytes)
			if err != nil || len(h.name) != MaxName {
				t.Errorf("interval %v, multiplier %d: %v", d, mult, err)
			}
		}
	}
}

// Time that runs backwards is taken for standing still.
func TestClockBackwards(t *testing.T) {
	s, a, _ := two(t, 15)
	m := s.nodes["A"]
	hello := liveness.Hello{State: liveness.Up, DetectMult: 3, My: s.nodes["B"].ports[0].discriminator, Your: m.ports[0].discriminator,
		DesiredMinTx: 50 * time.Millisecond, RequiredMinRx: 50 * time.Millisecond}
	frame := appendHello(nil, mac("B", 1), hello, 1, 0, "B", 0)
	if err := m.Receive(s.now.Add(-time.Hour), 1, frame); err != nil {
		t.Error(err)
	}
	if _, ev, next := m.Tick(s.now.Add(-time.Hour)); ev != nil || !next.After(s.now) {
		t.Errorf("events %v, next %v", ev, next)
	}
	s.run(time.Minute)
	s.want(a, Up, "")
	s.wantEvents(a)
}
