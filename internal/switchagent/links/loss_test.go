package links

import (
	"strings"
	"testing"
	"time"
)

// TestFlapBetweenHellos: a link that is down for 50 ms of each 100 stays up, because a hello passes in each 50 ms. Both
// ends say that it loses hellos, until it no longer does.
func TestFlapBetweenHellos(t *testing.T) {
	s, a, b := two(t, 1)
	s.run(5 * time.Second)
	s.took(a)
	s.took(b)
	check := func(what, want string) {
		t.Helper()
		for _, at := range []end{a, b} {
			if st := s.state(at); st.State != Up || (want == "") != (st.Problem == "") || !strings.Contains(st.Problem, want) {
				t.Errorf("%s: %v is %s, %q; want %q", what, at, st.State, st.Problem, want)
			}
			if e := s.took(at); len(e) > 0 {
				t.Errorf("%s: %v had events %q", what, at, e)
			}
		}
	}
	check("nothing is lost", "")
	cut := s.now
	s.lose = func(end) bool { return s.now.Sub(cut) < 70*time.Millisecond }
	s.run(5 * time.Second)
	check("one interruption", "")
	s.lose = func(end) bool { return s.now.UnixMilli()%100 < 50 }
	s.run(10 * time.Second)
	check("it flaps", "% of the last 64 hellos of")
	s.lose = func(end) bool { return false }
	s.run(4 * time.Second)
	check("it no longer flaps", "")

	// An agent of a former release does not number its hellos.
	s.lose = func(end) bool { return s.now.UnixMilli()%100 < 50 }
	s.mangle = func(_ end, frame []byte) { clear(frame[nameAt+1:]) }
	s.run(10 * time.Second)
	check("hellos without numbers", "")
}

func TestLossCounts(t *testing.T) {
	var l loss
	hear := func(numbers ...uint32) {
		for _, n := range numbers {
			l.hear(n)
		}
	}
	want := func(percent int) {
		t.Helper()
		if got := l.percent(); got != percent {
			t.Errorf("%d %% lost, want %d: %+v", got, percent, l)
		}
	}
	first := ^uint32(0) - 31 // the numbers wrap, and 0 is left out
	for i := range uint32(63) {
		if n := first + i; n != 0 {
			hear(n)
		}
	}
	want(0)
	hear(first + 63)
	want(100 / 64)
	hear(first+63, first+62, first+10) // second copies
	want(100 / 64)
	hear(first + 63 + 32)
	want(100 * 32 / 64)
	hear(first + 63 + 31) // overtaken
	want(100 * 31 / 64)
	hear(first + 63 + 96)
	want(100 * 63 / 64)
	hear(first + 63 + 96 + 1<<20)
	want(100 * 63 / 64)
	hear(first) // from long ago
	want(100 * 63 / 64)
	hear(0)
	want(0)
	hear(5, 68)
	want(100 * 62 / 64)
}
