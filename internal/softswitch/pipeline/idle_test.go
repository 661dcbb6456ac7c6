package pipeline

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestIdleAgainstOracle compares the idle queue with a look at every entry.
func TestIdleAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := stateProgram()
		p.Tables[0].Size = 0
		s, err := newState(p)
		if err != nil {
			t.Fatal(err)
		}
		tb := s.Table("exact")
		var now time.Duration
		told := map[*Entry]time.Duration{} // when; and not hit since
		key := func(t *rapid.T) uint64 { return rapid.Uint64Range(0, 5).Draw(t, "key") }
		timeout := func(t *rapid.T) time.Duration { return time.Duration(rapid.IntRange(0, 5).Draw(t, "timeout")) }
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				_ = tb.Insert(&Entry{Key: exact(key(t)), Call: send(1, 1), IdleTimeout: timeout(t), LastHit: now})
			},
			"delete": func(t *rapid.T) { _ = tb.Delete(exact(key(t)), 0) },
			"modify": func(t *rapid.T) {
				n := &Entry{Key: exact(key(t)), Call: send(1, 1), IdleTimeout: timeout(t)}
				if rapid.Bool().Draw(t, "fresh") {
					n.LastHit = now
				}
				if e := tb.Find(n.Key, 0); e != nil && n.LastHit > e.LastHit {
					delete(told, e)
				}
				_ = tb.Modify(n)
			},
			"hit": func(t *rapid.T) {
				if e := tb.lookup([]uint64{key(t)}); e != nil {
					if e.LastHit != now {
						delete(told, e)
					}
					e.hit(now, 1)
				}
			},
			"time": func(t *rapid.T) { now += time.Duration(rapid.IntRange(1, 8).Draw(t, "time")) },
			"expired": func(t *rapid.T) {
				want := map[*Entry]bool{}
				for e := range tb.All() {
					since := e.LastHit
					if at, ok := told[e]; ok {
						since = at
					}
					if e.IdleTimeout > 0 && now >= since+e.IdleTimeout {
						want[e] = true
						told[e] = now
					}
				}
				got := s.Expired(now)
				for _, x := range got {
					if x.Table != tb || !want[x.Entry] {
						t.Fatalf("at %d: %+v is reported", now, x.Entry)
					}
					delete(want, x.Entry)
				}
				if len(want) > 0 {
					t.Fatalf("at %d: %d are not reported", now, len(want))
				}
				if !slices.IsSortedFunc(got, func(a, b Expired) int { return int(a.Entry.LastHit - b.Entry.LastHit) }) {
					t.Fatalf("not in order: %v", got)
				}
			},
			"": func(t *rapid.T) {
				n := 0
				for e := range tb.All() {
					if e.IdleTimeout > 0 {
						n++
					}
				}
				if len(s.idle.h) != n {
					t.Fatalf("%d entries in the queue, of %d with a time-out", len(s.idle.h), n)
				}
			},
		})
	})
}

// TestIdleAgain: an entry that stays idle is reported after each time-out, counted
// from the report, and a packet puts the next one off.
func TestIdleAgain(t *testing.T) {
	s := testState(t)
	tb := s.Table("exact")
	noErr(t, tb.Insert(&Entry{Key: exact(1), Call: send(1, 1), IdleTimeout: 10, LastHit: 100}))
	e := tb.Find(exact(1), 0)
	reports := func(from, to time.Duration) (at []time.Duration) {
		for now := from; now <= to; now++ {
			for range s.Expired(now) {
				at = append(at, now)
			}
		}
		return at
	}
	if got := reports(100, 135); !slices.Equal(got, []time.Duration{110, 120, 130}) {
		t.Errorf("reported at %v", got)
	}
	e.hit(136, 1)
	if got := reports(137, 160); !slices.Equal(got, []time.Duration{146, 156}) {
		t.Errorf("after a hit reported at %v", got)
	}
	m := *e
	m.IdleTimeout = 20 // what has been reported counts
	noErr(t, tb.Modify(&m))
	if got := reports(161, 200); !slices.Equal(got, []time.Duration{176, 196}) {
		t.Errorf("after Modify reported at %v", got)
	}
	if got := reports(1000, 1000); len(got) != 1 { // however many time-outs were slept through
		t.Errorf("later reported at %v", got)
	}
	if got := reports(1001, 1025); !slices.Equal(got, []time.Duration{1020}) {
		t.Errorf("then reported at %v", got)
	}
}

// TestIdleForever: the longest time-outs do not wrap around.
func TestIdleForever(t *testing.T) {
	s := testState(t)
	noErr(t, s.Table("exact").Insert(&Entry{Key: exact(1), Call: send(1, 1), IdleTimeout: 1<<63 - 1, LastHit: time.Hour}))
	if x := s.Expired(2 * time.Hour); len(x) > 0 {
		t.Errorf("expired: %v", x)
	}
}

// BenchmarkExpired asks often, with 100,000 busy entries.
func BenchmarkExpired(b *testing.B) {
	p := stateProgram()
	p.Tables[0].Size = 0
	s, err := newState(p)
	noErr(b, err)
	tb := s.Table("exact")
	for i := range uint64(100_000) {
		noErr(b, tb.Insert(&Entry{Key: exact(i), Call: send(1, 1), IdleTimeout: time.Minute, LastHit: time.Duration(i)}))
	}
	b.ReportAllocs()
	var now time.Duration
	for b.Loop() {
		now += 10 * time.Millisecond
		s.Expired(now)
	}
}
