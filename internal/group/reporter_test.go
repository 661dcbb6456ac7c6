package group

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestReporter: of two receivers without a connection, the one that has none with others is left out,
// whatever connection is found to be broken first, and whichever end reports it.
func TestReporter(t *testing.T) {
	all := []netip.Addr{at(1), at(2), at(3)}
	peers := [][]int{{1, 2}, {0, 3}, {0, 3}, {1, 2}} // in the binomial pipeline of four members
	type end struct{ suspect, reporter int }         // members; 0 is the sender
	formations, longest := 0, 0
	// fails continues after the formations whose ends are given.
	var fails func(broken netip.Addr, ends []int)
	fails = func(broken netip.Addr, ends []int) {
		s, lost := bySwitches(t, time.Unix(1000, 0)), map[netip.Addr]Loss(nil)
		order := all
		var ways []end
		for i := 0; ; i++ {
			f := Formation{N: s.form.N + 1}
			for _, a := range order {
				f.Receivers = append(f.Receivers, Receiver{Addr: a})
			}
			s.form, ways = &f, nil
			b := slices.Index(order, broken) + 1
			for _, p := range peers[b] {
				ways = append(ways, end{b, p}, end{p, b})
			}
			if i == len(ends) {
				break
			}
			w := ways[ends[i]]
			if w.suspect == 0 {
				w = end{w.reporter, 0}
			}
			r := &request{again: &Again{Formation: f.N, Suspects: []netip.Addr{order[w.suspect-1]}}}
			if w.reporter > 0 {
				r.again.Reporter = order[w.reporter-1]
			}
			if err := s.choose(r); err != nil {
				t.Fatal(err)
			}
			order, lost = r.candidates, r.lost
			formations++
		}
		longest = max(longest, len(ends))
		if len(lost) > 0 {
			if _, out := lost[broken]; !out || len(lost) > 1 {
				t.Errorf("%v has no connections, and %v are left out, after %v", broken, lost, ends)
			}
			return
		}
		if len(ends) == 5 {
			t.Errorf("%v is not left out, after %v", broken, ends)
			return
		}
		for i := range ways {
			fails(broken, append(slices.Clone(ends), i))
		}
	}
	for _, a := range all {
		fails(a, nil)
	}
	t.Logf("%d formations, at most %d of a group", formations, longest)
}

// TestSuspectedBesideAdditions: that an application adds receivers does not clear the suspects.
func TestSuspectedBesideAdditions(t *testing.T) {
	s := bySwitches(t, time.Unix(1000, 0))
	for i := 1; i <= MaxSuspected; i++ {
		for _, again := range []Again{{Suspects: []netip.Addr{agentOne}}, {Add: []netip.Addr{at(9)}}} {
			f := *s.form
			f.N++
			s.form, again.Formation = &f, f.N
			r := &request{again: &again}
			if err := s.choose(r); err != nil {
				t.Fatal(err)
			}
			if _, out := r.lost[agentOne]; out != (i == MaxSuspected) {
				t.Errorf("suspected %d times, %+v: %v are left out", i, again, r.lost)
			}
		}
	}
}

// TestSuspectedInTurns: a formation in which nothing was completed clears no receiver, and one that carried data for long clears all.
func TestSuspectedInTurns(t *testing.T) {
	for _, c := range []struct {
		name      string
		fruitless bool
		lasts     time.Duration
		suspects  []netip.Addr // of the formations, in turns
		out       int          // after how many formations one is left out; 0: never
	}{
		{"both fail", true, 0, []netip.Addr{agentOne, agentTen}, 2*MaxSuspected - 1},
		{"both fail, and the group goes on", false, 0, []netip.Addr{agentOne, agentTen}, 0},
		{"one fails at once", false, 0, []netip.Addr{agentOne}, MaxSuspected},
		{"one fails at times", false, time.Minute, []netip.Addr{agentOne}, 0},
		{"one does not get ready", true, time.Minute, []netip.Addr{agentOne}, MaxSuspected},
	} {
		now, out := time.Unix(1000, 0), 0
		s := bySwitches(t, now)
		for i := 1; i <= 10 && out == 0; i++ {
			f := *s.form
			f.N++
			s.form, s.suspected.since = &f, now
			now = now.Add(c.lasts)
			r := &request{again: &Again{Formation: f.N, Suspects: c.suspects[i%len(c.suspects):][:1], Fruitless: c.fruitless}, watch: stopwatch{begun: now}}
			if err := s.choose(r); err != nil {
				t.Fatal(err)
			}
			if len(r.lost) > 0 {
				out = i
			}
		}
		if out != c.out {
			t.Errorf("%s: one is left out after %d formations, want %d", c.name, out, c.out)
		}
	}
}

// TestReporterUnclear: if nothing tells two receivers apart, the suspect is left out in the end.
func TestReporterUnclear(t *testing.T) {
	s := bySwitches(t, time.Unix(1000, 0))
	for i := 1; i <= MaxUnclear; i++ {
		f := *s.form
		f.N++
		s.form = &f
		r := &request{again: &Again{Formation: f.N, Suspects: []netip.Addr{agentOne}, Reporter: agentTen}}
		if err := s.choose(r); err != nil {
			t.Fatal(err)
		}
		if _, out := r.lost[agentOne]; out != (i == MaxUnclear) || len(r.candidates)+len(r.lost) != 2 {
			t.Errorf("after %d formations %v are left out", i, r.lost)
		}
	}
}
