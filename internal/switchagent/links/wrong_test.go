package links

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/routing/liveness"
)

func TestCablesSwapped(t *testing.T) {
	s, a, b := two(t, 3)
	c, d := end{"C", 1}, end{"D", 1}
	s.connect(c, d)
	s.start("C", "D")
	s.start("D", "C")
	s.run(time.Second)
	s.want(c, Up, "")
	s.took(c)
	s.connect(a, c)
	s.connect(b, d)
	swapped := s.now
	s.run(10 * time.Second)
	s.want(a, Wrong, "C port 1 is there, expected B")
	s.want(b, Wrong, "D port 1 is there, expected A")
	s.want(c, Wrong, "A port 1 is there, expected D")
	for _, at := range []end{a, b, c, d} {
		if took := s.events[at][0].at.Sub(swapped); took > 60*time.Millisecond {
			t.Errorf("%v noticed the swap after %v", at, took)
		}
	}
	if st := s.state(a); st.Peer != mac("C", 1) || st.Name != "C" || st.Expect != "B" {
		t.Errorf("state %+v", st)
	}
	s.wantEvents(a, "up=false C 02:43:00:00:00:01: C port 1 is there, expected B")
	if err := s.errs[a]; !errors.Is(err, ErrWrong) || err.Error() != "links: hello of another neighbor: port 1: C port 1 is there, expected B" {
		t.Errorf("error %v", err)
	}
	s.connect(a, b)
	s.connect(c, d)
	s.run(2 * time.Second)
	for _, at := range []end{a, b, c, d} {
		s.want(at, Up, "")
	}
	s.wantEvents(a, "up=false C 02:43:00:00:00:01: C port 1 is no longer heard; B has not been heard since",
		"up=true B 02:42:00:00:00:01: ")
}

// Between the same two switches, swapped cables come up again, with the other port.
func TestParallelCablesSwapped(t *testing.T) {
	s := newSim(t, 4)
	s.start("A", "B", "B")
	s.start("B", "A", "A")
	s.connect(end{"A", 1}, end{"B", 1})
	s.connect(end{"A", 2}, end{"B", 2})
	s.run(time.Second)
	s.want(end{"A", 1}, Up, "")
	s.took(end{"A", 1})
	s.connect(end{"A", 1}, end{"B", 2})
	s.connect(end{"A", 2}, end{"B", 1})
	s.run(2 * time.Second)
	s.want(end{"A", 1}, Up, "")
	if st := s.state(end{"A", 1}); st.PeerPort != 2 || st.Peer != mac("B", 2) {
		t.Errorf("state %+v", st)
	}
	if got := s.took(end{"A", 1}); len(got) != 2 || !strings.HasPrefix(got[0], "up=false B") || got[1] != "up=true B 02:42:00:00:00:02: " {
		t.Errorf("events %q", got)
	}
}

func TestOwnHellos(t *testing.T) {
	s := newSim(t, 5)
	s.start("A", "B", "B", "B", "C")
	s.start("A2", "B")
	s.nodes["A2"].name = "A"
	s.cables[end{"A", 1}] = []end{{"A", 1}}
	s.connect(end{"A", 2}, end{"A", 4})
	s.connect(end{"A", 3}, end{"A2", 1})
	s.run(10 * time.Second)
	s.want(end{"A", 1}, Wrong, "what is sent comes back: the port is looped, expected B")
	s.want(end{"A", 2}, Wrong, "the cable goes to this switch's own port 4, expected B")
	s.want(end{"A", 4}, Wrong, "the cable goes to this switch's own port 2, expected C")
	s.want(end{"A", 3}, Wrong, "another switch that is called A too is there, with its port 1, expected B")
	for p := range uint16(4) {
		if got := s.took(end{"A", p + 1}); len(got) != 1 {
			t.Errorf("port %d: events %q", p+1, got)
		}
	}
}

// A link that becomes a loop after it was up goes down at once too.
func TestLoopOfALiveLink(t *testing.T) {
	s, a, _ := two(t, 6)
	s.cables[a] = []end{a}
	s.run(60 * time.Millisecond)
	s.want(a, Wrong, "what is sent comes back: the port is looped, expected B")
}

// With two neighbors on one wire, the port stays wrong until the wrong one leaves.
func TestTwoNeighborsOnAWire(t *testing.T) {
	s, a, b := two(t, 7)
	c := end{"C", 1}
	s.cables = map[end][]end{a: {b, c}, b: {a, c}, c: {a, b}}
	s.start("C", "A")
	s.run(10 * time.Second)
	s.want(a, Wrong, "C port 1 is there, expected B")
	s.want(b, Wrong, "C port 1 is there, expected A")
	s.want(c, Wrong, "B port 1 is there, expected A")
	s.wantEvents(a, "up=false C 02:43:00:00:00:01: C port 1 is there, expected B")
	s.run(time.Minute)
	s.wantEvents(a)
	delete(s.cables, c)
	s.connect(a, b)
	s.run(2 * time.Second)
	s.want(a, Up, "")
	s.want(b, Up, "")
}

// Of several wrong neighbors the first is named until it leaves.
func TestTwoWrongNeighbors(t *testing.T) {
	s, a := newSim(t, 16), end{"A", 1}
	c, d := end{"C", 1}, end{"D", 1}
	s.start("A", "B")
	s.start("C", "A")
	s.cables[c] = []end{a}
	s.run(time.Second)
	s.start("D", "A")
	s.cables[d] = []end{a}
	for range 100 {
		s.run(37 * time.Millisecond)
		s.want(a, Wrong, "C port 1 is there, expected B")
	}
	s.wantEvents(a, "up=false C 02:43:00:00:00:01: C port 1 is there, expected B")
	delete(s.cables, c)
	s.run(2 * time.Second)
	s.want(a, Wrong, "D port 1 is there, expected B")
	s.wantEvents(a, "up=false C 02:43:00:00:00:01: C port 1 is no longer heard; B has not been heard since",
		"up=false D 02:44:00:00:00:01: D port 1 is there, expected B")
}

// One wrong hello takes the link down, the neighbor learns of it at once, and the link
// stays down for as long as that hello promises, but not for ever.
func TestOneWrongHello(t *testing.T) {
	for _, c := range []struct {
		mult        uint8
		interval    time.Duration
		wrong, back time.Duration
	}{
		{3, time.Millisecond, 590 * time.Millisecond, 620 * time.Millisecond}, // slows down when it finds its link down
		{3, time.Second, 2990 * time.Millisecond, 3020 * time.Millisecond},
		{255, maxInterval, maxWrong - 10*time.Millisecond, maxWrong + 20*time.Millisecond},
	} {
		s, a, b := two(t, 17)
		live := liveness.Hello{State: liveness.Up, DetectMult: c.mult, My: 1, Your: 2, DesiredMinTx: c.interval, RequiredMinRx: time.Second}
		s.flying = append([]flight{{s.now, a, appendHello(nil, mac("C", 1), live, 1, 0, "C", 0)}}, s.flying...)
		s.run(time.Millisecond)
		s.want(b, Down, "A port 1 holds the link down: it is shutting down, or expects another neighbor")
		s.run(c.wrong - time.Millisecond)
		s.want(a, Wrong, "C port 1 is there, expected B")
		s.run(c.back - c.wrong + 300*time.Millisecond)
		s.want(a, Up, "")
	}
	// The end of the wait is kept even if no hello is due until long after.
	now := time.Unix(0, 0)
	m := New(Config{Name: "A", Interval: time.Minute, Rand: steady(), Ports: []Port{{Number: 1, Expect: "B"}}}, now)
	m.Tick(now)
	if err := m.Receive(now, 1, appendHello(nil, mac("C", 1), sample, 1, 0, "C", 0)); !errors.Is(err, ErrWrong) {
		t.Fatal(err)
	}
	if _, _, next := m.Tick(now); next.Sub(now) != 600*time.Millisecond {
		t.Errorf("next tick after %v", next.Sub(now))
	}
}

// The one that refuses says so to the other, which finds nothing wrong.
func TestRefused(t *testing.T) {
	s, a, b := newSim(t, 11), end{"A", 1}, end{"B", 1}
	s.connect(a, b)
	s.start("A", "B")
	s.start("B", "C")
	s.run(10 * time.Second)
	s.want(a, Down, "B port 1 holds the link down: it is shutting down, or expects another neighbor")
	s.want(b, Wrong, "A port 1 is there, expected C")
	s.wantEvents(a)
}
