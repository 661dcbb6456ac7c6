package links

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// end is a port of a switch.
type end struct {
	name string
	port uint16
}

type hop struct{ from, to end }

type flight struct {
	at    time.Time
	to    end
	frame []byte
}

// seen is an event, and when and where it came.
type seen struct {
	Event
	at time.Time
}

// sim is some managers, the cables between them, and virtual time.
type sim struct {
	t         testing.TB
	now       time.Time
	rng       *rand.Rand
	nodes     map[string]*Manager
	next      map[string]time.Time
	cables    map[end][]end
	flying    []flight
	events    map[end][]seen
	told      map[end]bool // up, by the events
	lastEvent map[end]Event
	last      map[hop]time.Time // when the last frame arrives
	errs      map[end]error     // of the last frame received

	delay  func() time.Duration
	lose   func(from end) bool
	mangle func(from end, frame []byte)
}

func newSim(t testing.TB, seed uint64) *sim {
	return &sim{t: t, now: time.Unix(1000, 0), rng: rand.New(rand.NewPCG(seed, 1)),
		nodes: map[string]*Manager{}, next: map[string]time.Time{}, cables: map[end][]end{},
		events: map[end][]seen{}, told: map[end]bool{}, lastEvent: map[end]Event{}, last: map[hop]time.Time{}, errs: map[end]error{},
		delay:  func() time.Duration { return 100 * time.Microsecond },
		lose:   func(end) bool { return false },
		mangle: func(end, []byte) {}}
}

func mac(name string, port uint16) switchspec.MAC {
	m := switchspec.MAC{2, 0, 0, 0, 0, byte(port)}
	copy(m[1:4], name)
	return m
}

// steady draws the same numbers each time.
func steady() *rand.Rand { return rand.New(rand.NewPCG(1, 1)) }

// start boots a switch; expect[i] is the neighbor of port i+1.
func (s *sim) start(name string, expect ...string) *Manager {
	var ports []Port
	for i, e := range expect {
		n := uint16(i + 1)
		ports = append(ports, Port{Number: n, MAC: mac(name, n), Expect: e})
	}
	return s.startWith(name, Config{Name: name, Ports: ports})
}

func (s *sim) startWith(name string, cfg Config) *Manager {
	cfg.Rand = rand.New(rand.NewPCG(s.rng.Uint64(), s.rng.Uint64()))
	m := New(cfg, s.now)
	s.nodes[name], s.next[name] = m, s.now
	for e := range s.told {
		if e.name == name {
			delete(s.told, e)
			delete(s.lastEvent, e)
		}
	}
	return m
}

// close ends a switch's manager; it is gone then.
func (s *sim) close(name string, hold time.Duration) {
	s.transmit(name, s.nodes[name].Close(s.now, hold))
	delete(s.nodes, name)
	delete(s.next, name)
}

func (s *sim) connect(a, b end) {
	s.cables[a], s.cables[b] = []end{b}, []end{a}
}

func (s *sim) transmit(name string, frames []Frame) {
	for _, f := range frames {
		from := end{name, f.Port}
		if len(f.Bytes) < 60 {
			s.t.Fatalf("%v sends a frame of %d bytes", from, len(f.Bytes))
		}
		for _, to := range s.cables[from] {
			if s.lose(from) {
				continue
			}
			frame := slices.Clone(f.Bytes)
			s.mangle(from, frame)
			at := s.now.Add(s.delay())
			if on := (hop{from, to}); at.Before(s.last[on]) {
				at = s.last[on] // a wire keeps the order
			} else {
				s.last[on] = at
			}
			i, _ := slices.BinarySearchFunc(s.flying, at, func(f flight, t time.Time) int {
				if f.at.After(t) {
					return 1
				}
				return -1
			})
			s.flying = slices.Insert(s.flying, i, flight{at, to, frame})
		}
	}
}

func (s *sim) tick(name string) {
	send, events, next := s.nodes[name].Tick(s.now)
	if !next.After(s.now) {
		s.t.Fatalf("%s wants to be called again at once, for ever", name)
	}
	s.next[name] = next
	for _, e := range events {
		at := end{name, e.Port}
		if e.Up && s.told[at] && e.Reason == "" || e == s.lastEvent[at] {
			s.t.Fatalf("%v: told twice: %+v", at, e)
		}
		s.lastEvent[at] = e
		s.events[at] = append(s.events[at], seen{e, s.now})
		s.told[at] = e.Up
	}
	for _, st := range s.nodes[name].States() {
		if at := (end{name, st.Port}); (st.State == Up) != s.told[at] {
			s.t.Fatalf("%v is %s (%s), but the events said up=%v", at, st.State, st.Reason, s.told[at])
		}
	}
	s.transmit(name, send)
}

// run lets d pass.
func (s *sim) run(d time.Duration) {
	names := make([]string, 0, len(s.nodes))
	for n := range s.nodes {
		names = append(names, n)
	}
	slices.Sort(names)
	for stop := s.now.Add(d); ; {
		at, who := stop, ""
		for _, n := range names {
			if s.next[n].Before(at) {
				at, who = s.next[n], n
			}
		}
		if len(s.flying) > 0 && !s.flying[0].at.After(at) {
			f := s.flying[0]
			s.flying = s.flying[1:]
			s.now = f.at
			if m := s.nodes[f.to.name]; m != nil {
				s.errs[f.to] = m.Receive(s.now, f.to.port, f.frame)
				s.tick(f.to.name)
			}
			continue
		}
		if who == "" {
			s.now = stop
			return
		}
		if at.After(s.now) {
			s.now = at
		}
		s.tick(who)
	}
}

// state is what a port knows.
func (s *sim) state(at end) State {
	for _, st := range s.nodes[at.name].States() {
		if st.Port == at.port {
			return st
		}
	}
	s.t.Fatalf("no port %v", at)
	return State{}
}

func (s *sim) want(at end, state, reason string) {
	s.t.Helper()
	if st := s.state(at); st.State != state || st.Reason != reason {
		s.t.Errorf("%v is %s (%q), want %s (%q)", at, st.State, st.Reason, state, reason)
	}
}

// took returns the events of a port since it was asked last, in words.
func (s *sim) took(at end) []string {
	var out []string
	for _, e := range s.events[at] {
		out = append(out, fmt.Sprintf("up=%v %s %v: %s", e.Up, e.Name, e.Peer, e.Reason))
	}
	delete(s.events, at)
	return out
}

func (s *sim) wantEvents(at end, want ...string) {
	s.t.Helper()
	if got := s.took(at); !slices.Equal(got, want) {
		s.t.Errorf("%v: events\n%q\nwant\n%q", at, got, want)
	}
}

// two returns switches A and B whose link, port 1 of each, is up.
func two(t testing.TB, seed uint64) (s *sim, a, b end) {
	s, a, b = newSim(t, seed), end{"A", 1}, end{"B", 1}
	s.connect(a, b)
	s.start("A", "B", "C") // nothing is at port 2
	s.run(time.Duration(s.rng.Int64N(int64(time.Second))))
	s.start("B", "A", "C")
	s.run(time.Second)
	s.want(a, Up, "")
	s.want(b, Up, "")
	if t.Failed() {
		t.FailNow()
	}
	s.took(a)
	s.took(b)
	return s, a, b
}
