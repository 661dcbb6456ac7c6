package links

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/routing/liveness"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// heldReason is what A says of B, and until when.
func heldReason(until time.Time) string {
	return "the agent of B port 1 is restarting, held until " + until.Format(time.TimeOnly)
}

// The absence of an agent that is back in time causes no event at its neighbors.
func TestHold(t *testing.T) {
	for seed := range uint64(50) {
		s, a, b := two(t, seed)
		s.delay = func() time.Duration { return time.Duration(s.rng.Int64N(int64(5 * time.Millisecond))) }
		since := s.state(a).Since
		for range 3 {
			until := s.now.Add(30 * time.Second)
			s.close("B", 30*time.Second)
			s.run(10 * time.Millisecond)
			if st := s.state(a); st.State != Up || !strings.HasPrefix(st.Reason, "the agent of B port 1 is restarting, held until ") || st.Peer != mac("B", 1) {
				t.Fatalf("seed %d: %+v", seed, st)
			}
			s.run(until.Sub(s.now) - time.Second)
			if st := s.state(a); st.State != Up {
				t.Fatalf("seed %d: %+v", seed, st)
			}
			s.start("B", "A")
			s.run(50 * time.Millisecond)
			s.want(a, Up, "")
			s.want(b, Up, "")
			s.run(2 * time.Second) // past the end of the hold
			s.wantEvents(a)
			s.wantEvents(b, "up=true A 02:41:00:00:00:01: ")
		}
		if at := s.state(a).Since; at != since {
			t.Errorf("seed %d: up since %v, was %v", seed, at, since)
		}
		// The new session watches as the old one did.
		s.lose = func(end) bool { return true }
		s.run(200 * time.Millisecond)
		s.wantEvents(a, "up=false B 02:42:00:00:00:01: B port 1 was not heard for 150ms")
	}
}

// An agent that is back before its neighbor would have missed it causes no event.
func TestHoldShort(t *testing.T) {
	for wait := time.Duration(0); wait < 400*time.Millisecond; wait += 10 * time.Millisecond {
		s, a, b := two(t, uint64(wait))
		s.close("B", 30*time.Second)
		s.run(wait)
		s.start("B", "A")
		s.run(2 * time.Millisecond)
		s.want(b, Up, "")
		s.want(a, Up, "")
		s.run(time.Second)
		s.wantEvents(a)
	}
}

// Each of the last hellos is enough.
func TestHoldLoss(t *testing.T) {
	for kept := range farewells {
		s, a, _ := two(t, 3)
		n := 0
		s.lose = func(from end) bool { n++; return from.port != 1 || n != kept+1 }
		s.close("B", 30*time.Second)
		s.lose = func(end) bool { return false }
		s.run(20 * time.Second)
		if st := s.state(a); st.State != Up {
			t.Errorf("with hello %d of %d: %+v", kept+1, farewells, st)
		}
		s.wantEvents(a)
	}
}

// An agent that does not come back is down when the hold ends, and not sooner or later.
func TestHoldEnds(t *testing.T) {
	for _, hold := range []time.Duration{1, time.Second, 30 * time.Second, MaxHold, time.Hour} {
		s, a, _ := two(t, 4)
		s.delay = func() time.Duration { return 0 }
		s.close("B", hold)
		begun, want := s.now, min(max(hold, time.Second), MaxHold)
		s.run(1)
		s.want(a, Up, heldReason(begun.Add(want)))
		s.run(time.Hour)
		gone := "the agent of B port 1 has not come back from its restart in time"
		s.want(a, Down, gone)
		ev := s.events[a]
		if len(ev) != 1 || ev[0].Up || ev[0].Reason != gone || ev[0].at.Sub(begun) != want {
			t.Errorf("hold of %v: %+v after %v", hold, ev, begun)
		}
		s.took(a)
		s.start("B", "A")
		s.run(time.Second)
		s.wantEvents(a, "up=true B 02:42:00:00:00:01: ")
	}
}

// Half a handshake is not enough: the hold ends all the same, and the rest comes later.
func TestHoldEndsInHandshake(t *testing.T) {
	s, a, b := two(t, 5)
	s.close("B", 10*time.Second)
	s.run(time.Second)
	s.lose = func(from end) bool { return from == a }
	s.start("B", "A")
	s.run(8 * time.Second)
	s.want(a, Up, s.state(a).Reason)
	s.wantEvents(a)
	s.run(2 * time.Second)
	s.wantEvents(a, "up=false B 02:42:00:00:00:01: the agent of B port 1 has not come back from its restart in time")
	s.want(a, Init, "B port 1 is heard but has not said that it hears us")
	s.lose = func(end) bool { return false }
	s.run(time.Second)
	s.want(a, Up, "")
	s.want(b, Up, "")
	s.wantEvents(a, "up=true B 02:42:00:00:00:01: ")
}

// A new agent that dies in the handshake is still waited for.
func TestHoldThroughFailedStart(t *testing.T) {
	s, a, _ := two(t, 6)
	s.close("B", 30*time.Second)
	s.run(time.Second)
	s.lose = func(from end) bool { return from == a }
	s.start("B", "A")
	s.run(time.Second)
	delete(s.nodes, "B")
	delete(s.next, "B")
	s.lose = func(end) bool { return false }
	s.run(20 * time.Second)
	if st := s.state(a); st.State != Up {
		t.Errorf("%+v", st)
	}
	s.start("B", "A")
	s.run(time.Second)
	s.want(a, Up, "")
	s.wantEvents(a)
}

// Both agents of a link restart, in any order: neither has a link to take down, and
// it is up for both in the end.
func TestHoldBoth(t *testing.T) {
	for seed := range uint64(50) {
		s, a, b := two(t, seed)
		wait := func() { s.run(time.Duration(s.rng.Int64N(int64(4 * time.Second)))) }
		s.close("B", 30*time.Second)
		wait()
		s.close("A", 30*time.Second)
		wait()
		first, second := "A", "B"
		if seed%2 == 0 {
			first, second = second, first
		}
		s.start(first, second)
		wait()
		s.start(second, first)
		s.run(time.Second)
		s.want(a, Up, "")
		s.want(b, Up, "")
		s.wantEvents(a, "up=true B 02:42:00:00:00:01: ")
		s.wantEvents(b, "up=true A 02:41:00:00:00:01: ")
	}
}

// An agent that leaves without a hold while it is held, or when it has come back, is
// down at once.
func TestHoldThenLeave(t *testing.T) {
	leaves := "B port 1 holds the link down: it is shutting down, or expects another neighbor"
	s, a, _ := two(t, 7)
	s.close("B", 30*time.Second)
	s.run(time.Second)
	s.lose = func(from end) bool { return from == a } // it hears nothing
	s.start("B", "A")
	s.run(time.Second)
	s.wantEvents(a)
	s.close("B", 0)
	s.run(10 * time.Millisecond)
	s.want(a, Down, leaves)
	s.wantEvents(a, "up=false B 02:42:00:00:00:01: "+leaves)

	s, a, _ = two(t, 8)
	s.close("B", 30*time.Second)
	s.run(time.Second)
	s.start("B", "A")
	s.run(time.Second)
	s.close("B", 0)
	s.run(10 * time.Millisecond)
	s.want(a, Down, leaves)
}

// Another switch at the cable ends the hold at once, and permanently.
func TestHoldWrongNeighbor(t *testing.T) {
	s, a, b := two(t, 9)
	s.close("B", 30*time.Second)
	s.run(time.Second)
	c := end{"C", 1}
	s.start("C", "A")
	s.connect(a, c)
	s.run(time.Second)
	wrong := "C port 1 is there, expected B"
	s.want(a, Wrong, wrong)
	s.wantEvents(a, "up=false C 02:43:00:00:00:01: "+wrong)
	s.run(time.Minute) // past the end of the hold
	s.want(a, Wrong, wrong)
	s.wantEvents(a)
	delete(s.cables, c)
	s.connect(a, b)
	s.run(10 * time.Second)
	s.want(a, Down, "C port 1 is no longer heard; B has not been heard since")
	s.took(a)
	s.start("B", "A")
	s.run(time.Second)
	s.want(a, Up, "")
	s.wantEvents(a, "up=true B 02:42:00:00:00:01: ")
}

// The neighbor is waited for at its port only.
func TestHoldOtherPort(t *testing.T) {
	s, a, b := newSim(t, 10), end{"A", 1}, end{"B", 1}
	s.connect(a, b)
	s.start("A", "B")
	s.start("B", "A", "A")
	s.run(time.Second)
	s.want(a, Up, "")
	s.took(a)
	s.close("B", 30*time.Second)
	s.run(time.Second)
	delete(s.cables, b)
	s.start("B", "A", "A")
	s.connect(a, end{"B", 2})
	s.run(time.Second)
	s.want(a, Up, "")
	got := s.took(a)
	if len(got) != 2 || !strings.HasPrefix(got[0], "up=false B ") || !strings.Contains(got[0], "in place of B port 1 that was restarting") ||
		!strings.HasPrefix(got[1], "up=true B") {
		t.Errorf("%q", got)
	}
}

// A new agent with other MACs causes an event, as always.
func TestHoldMACChange(t *testing.T) {
	s, a, _ := two(t, 11)
	s.close("B", 30*time.Second)
	s.run(time.Second)
	now := switchspec.MAC{2, 9, 9, 9, 9, 9}
	s.startWith("B", Config{Name: "B", Ports: []Port{{Number: 1, MAC: now, Expect: "A"}}})
	s.run(time.Second)
	if st := s.state(a); st.State != Up || st.Peer != now {
		t.Errorf("%+v", st)
	}
	s.wantEvents(a, "up=true B 02:09:09:09:09:09: the neighbor's MAC changed from 02:42:00:00:00:01 to 02:09:09:09:09:09")
}

// The last hellos, repeated at any time, hold nothing: not longer than they said, nor
// the link of the next session, nor one that is down.
func TestHoldReplay(t *testing.T) {
	s, a, b := two(t, 12)
	last := s.nodes["B"].Close(s.now, 10*time.Second)[0].Bytes
	m := s.nodes["A"]
	replay := func() {
		t.Helper()
		if err := m.Receive(s.now, 1, slices.Clone(last)); !errors.Is(err, liveness.ErrNotOurs) {
			t.Errorf("a replayed hold: %v", err)
		}
		s.tick("A")
	}
	if err := m.Receive(s.now, 1, slices.Clone(last)); err != nil {
		t.Fatal(err)
	}
	delete(s.nodes, "B")
	delete(s.next, "B")
	begun := s.now
	for s.now.Sub(begun) < 9*time.Second {
		s.run(time.Second)
		replay()
		s.want(a, Up, heldReason(begun.Add(10*time.Second)))
	}
	s.run(1500 * time.Millisecond)
	s.want(a, Down, "the agent of B port 1 has not come back from its restart in time")
	replay()
	s.want(a, Down, "the agent of B port 1 has not come back from its restart in time")
	s.start("B", "A")
	s.run(time.Second)
	s.want(a, Up, "")
	s.took(a)
	replay()
	s.want(a, Up, "")
	s.lose = func(from end) bool { return true }
	for range 10 {
		s.run(50 * time.Millisecond)
		replay()
	}
	s.want(a, Down, "B port 1 was not heard for 150ms")
	s.want(b, Down, "A port 1 was not heard for 150ms")
}

// Only an agent with a session that is up may ask to be waited for.
func TestHoldRefused(t *testing.T) {
	s, a, _ := two(t, 13)
	m := s.nodes["A"]
	good := liveness.Hello{State: liveness.Up, DetectMult: 3, My: s.nodes["B"].ports[0].discriminator, Your: m.ports[0].discriminator,
		DesiredMinTx: 50 * time.Millisecond, RequiredMinRx: 50 * time.Millisecond}
	my, your := good, good
	my.My++
	your.Your++
	for what, f := range map[string][]byte{
		"of another session":     appendHello(nil, mac("B", 1), my, 1, time.Second, "B", 0),
		"for another session":    appendHello(nil, mac("B", 1), your, 1, time.Second, "B", 0),
		"from another port":      appendHello(nil, mac("B", 1), good, 2, time.Second, "B", 0),
		"for longer than can be": appendHello(nil, mac("B", 1), good, 1, MaxHold+time.Second, "B", 0),
	} {
		if err := m.Receive(s.now, 1, f); err == nil {
			t.Errorf("a hold %s is taken", what)
		}
		s.want(a, Up, "")
	}
	s.lose = func(end) bool { return true }
	s.run(time.Second)
	if err := m.Receive(s.now, 1, appendHello(nil, mac("B", 1), good, 1, time.Second, "B", 0)); !errors.Is(err, liveness.ErrNotOurs) {
		t.Errorf("a hold of a link that is down: %v", err)
	}
	if err := m.Receive(s.now, 1, appendHello(nil, mac("B", 1), good, 1, time.Second, "X", 0)); !errors.Is(err, ErrWrong) {
		t.Errorf("a hold of a wrong neighbor: %v", err)
	}
	s.want(a, Wrong, "X port 1 is there, expected B")
}

// Nor may one that we hear, but that has not heard us.
func TestHoldInHandshake(t *testing.T) {
	s, a, b := newSim(t, 15), end{"A", 1}, end{"B", 1}
	s.connect(a, b)
	s.start("A", "B")
	s.start("B", "A")
	s.lose = func(from end) bool { return from == a }
	s.run(time.Second)
	live := liveness.Hello{State: liveness.Up, DetectMult: 3, My: s.nodes["B"].ports[0].discriminator, Your: s.nodes["A"].ports[0].discriminator,
		DesiredMinTx: 50 * time.Millisecond, RequiredMinRx: 50 * time.Millisecond}
	if err := s.nodes["A"].Receive(s.now, 1, appendHello(nil, mac("B", 1), live, 1, time.Second, "B", 0)); !errors.Is(err, liveness.ErrNotOurs) {
		t.Errorf("a hold in the handshake: %v", err)
	}
	s.want(a, Init, "B port 1 is heard but has not said that it hears us")
}

// With a hold, links that are not up are left as without.
func TestHoldOfDownLinks(t *testing.T) {
	s, _, _ := two(t, 14)
	last := s.nodes["B"].Close(s.now, 10*time.Second) // nothing is at its port 2
	if len(last) != farewells+1 {
		t.Fatalf("%d frames", len(last))
	}
	for i, f := range last {
		h, err := parseHello(f.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if want := i < farewells; want != (h.hold == 10*time.Second && h.live.State == liveness.Up && f.Port == 1) {
			t.Errorf("frame %d: %+v", i, h)
		}
		if i == farewells && (h.hold != 0 || h.live.State != liveness.AdminDown || f.Port != 2) {
			t.Errorf("frame %d: %+v", i, h)
		}
	}
}
