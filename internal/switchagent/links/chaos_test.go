package links

import (
	"testing"
	"time"
)

// Cables are pulled, swapped, looped and cut in one direction, and switches restarted,
// with and without last hellos, at random. A port is never up for a switch other than
// the expected neighbor, no port wakes up for nothing, and once all is repaired, all
// links are soon up. sim.tick checks that events and states agree.
func TestChaos(t *testing.T) {
	names := []string{"A", "B", "C"}
	expect := map[string][]string{"A": {"B", "C"}, "B": {"A", "C"}, "C": {"A", "B"}}
	order := [][2]end{{{"A", 1}, {"B", 1}}, {{"A", 2}, {"C", 1}}, {{"B", 2}, {"C", 2}}}
	var ends []end
	for _, c := range order {
		ends = append(ends, c[0], c[1])
	}
	ups, wrongs := 0, 0
	for seed := range uint64(60) {
		s := newSim(t, seed)
		s.delay = func() time.Duration { return time.Duration(s.rng.Int64N(int64(3 * time.Millisecond))) }
		broken := map[end]bool{}
		s.lose = func(from end) bool { return broken[from] || s.rng.IntN(20) == 0 }
		boot := func(name string) { s.start(name, expect[name]...) }
		for _, name := range names {
			boot(name)
		}
		for range 60 {
			switch s.rng.IntN(7) {
			case 0:
				boot(names[s.rng.IntN(len(names))])
			case 5:
				name := names[s.rng.IntN(len(names))]
				s.close(name, time.Duration(s.rng.Int64N(int64(3*time.Second))))
				s.run(time.Duration(s.rng.Int64N(int64(2 * time.Second))))
				boot(name)
			case 1:
				broken[ends[s.rng.IntN(len(ends))]] = true
			case 2:
				clear(broken)
				for _, c := range order {
					s.connect(c[0], c[1])
				}
			case 3:
				s.connect(ends[s.rng.IntN(len(ends))], ends[s.rng.IntN(len(ends))])
			case 4:
				delete(s.cables, ends[s.rng.IntN(len(ends))])
			}
			s.run(time.Duration(s.rng.Int64N(int64(time.Second))))
		}
		s.lose = func(end) bool { return false }
		s.cables = map[end][]end{}
		for _, c := range order {
			s.connect(c[0], c[1])
		}
		s.run(2 * time.Second)
		for _, at := range ends {
			if st := s.state(at); st.State != Up {
				t.Errorf("seed %d: %v is not up again: %+v", seed, at, st)
			}
			for _, e := range s.events[at] {
				if e.Up && e.Name != expect[at.name][at.port-1] {
					t.Errorf("seed %d: %v came up: %+v", seed, at, e)
				}
				if e.Up {
					ups++
				} else if e.Name != expect[at.name][at.port-1] {
					wrongs++
				}
			}
		}
	}
	t.Logf("links came up %d times, and %d times a wrong neighbor was there", ups, wrongs)
	if ups < 1000 || wrongs < 100 {
		t.Error("too little has happened")
	}
}
