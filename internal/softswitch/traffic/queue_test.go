package traffic

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// run lets a queue work by virtual time: packets arrive at the given times, each
// of that many bytes, and leave as early as they may. It returns when each left,
// or -1 for a drop, and what it saw.
func run(q *Queue[int], arrivals []time.Duration, bytes []int) (left []time.Duration, saw []Times) {
	left, saw = make([]time.Duration, len(arrivals)), make([]Times, len(arrivals))
	for i := range left {
		left[i] = -1
	}
	until := func(now time.Duration) {
		for {
			at, ok := q.Next()
			if !ok || at > now {
				return
			}
			k, t, ok := q.Take(at)
			if !ok {
				panic("Next and Take disagree")
			}
			left[k], saw[k] = at, t
			q.Sent(bytes[k])
		}
	}
	for i, at := range arrivals {
		until(at - 1) // what arrives comes before what leaves at the same time
		q.Put(at, i)
	}
	until(1 << 62)
	return left, saw
}

const us = time.Microsecond

func ones(n int) []int { return slices.Repeat([]int{1}, n) }

func TestRates(t *testing.T) {
	at := func(d ...time.Duration) []time.Duration { return d }
	for _, c := range []struct {
		name     string
		limits   Limits
		arrivals []time.Duration
		bytes    []int
		want     []time.Duration
	}{
		{"no limit", Limits{}, at(0, 0, 3*us), ones(3), at(0, 0, 3*us)},
		{"packets", Limits{Rate: Rate{PerSecond: 1000}}, at(0, 0, 0, 10*us), []int{1, 9000, 1, 1},
			at(0, 1000*us, 2000*us, 3000*us)},
		{"idle in between", Limits{Rate: Rate{PerSecond: 1000}}, at(0, 500*us, 9000*us, 9001*us), ones(4),
			at(0, 1000*us, 9000*us, 10000*us)},
		{"bits", Limits{Rate: Rate{1e9, true}}, at(0, 0, 0, 0), []int{125, 1250, 12500, 1}, at(0, us, 11*us, 111*us)},
		{"fractions add up", Limits{Rate: Rate{PerSecond: 3e8}}, at(0, 0, 0, 0, 0, 0, 0), ones(7),
			at(0, 3, 6, 10, 13, 16, 20)},
		{"tail drop", Limits{Depth: 2, Rate: Rate{PerSecond: 1e6}}, at(0, 0, 0, us, us, 2*us), ones(6),
			at(0, us, -1, 2*us, -1, 3*us)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var q Queue[int]
			if err := q.SetLimits(c.limits); err != nil {
				t.Fatal(err)
			}
			if left, _ := run(&q, c.arrivals, c.bytes); !slices.Equal(left, c.want) {
				t.Errorf("left %v, want %v", left, c.want)
			}
		})
	}
}

// TestDepths: as in bmv2, a packet does not see itself.
func TestDepths(t *testing.T) {
	var q Queue[int]
	if err := q.SetLimits(Limits{Depth: 3, Rate: Rate{PerSecond: 1e6}}); err != nil {
		t.Fatal(err)
	}
	_, saw := run(&q, []time.Duration{0, 0, 0, 0, 2 * us}, ones(5))
	want := []Times{{0, 0, 2}, {0, 1, 1}, {0, 2, 1}, {}, {2 * us, 1, 0}}
	if !slices.Equal(saw, want) {
		t.Errorf("saw %v, want %v", saw, want)
	}
}

// TestLate: a late Take sends what should have left, so that the rate is kept.
func TestLate(t *testing.T) {
	var q Queue[int]
	if err := q.SetLimits(Limits{Rate: Rate{PerSecond: 1e6}}); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		q.Put(0, i)
	}
	take := func(now time.Duration) (n int) {
		for {
			if _, _, ok := q.Take(now); !ok {
				return n
			}
			q.Sent(1)
			n++
		}
	}
	var got []int
	for _, now := range []time.Duration{0, 4500, 4900, 5000, 20 * us, 20 * us} {
		got = append(got, take(now))
	}
	if want := []int{1, 4, 0, 1, 4, 0}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	// Time that nothing waited for is not made up for.
	for i := range 10 {
		q.Put(100*us, i)
	}
	if n := take(102 * us); n != 3 {
		t.Errorf("%d left, want 3", n)
	}
}

// TestDropBehind: a packet that was not sent costs nothing.
func TestDropBehind(t *testing.T) {
	var q Queue[int]
	if err := q.SetLimits(Limits{Rate: Rate{PerSecond: 1e6}}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		q.Put(0, i)
	}
	q.Take(0)
	if _, _, ok := q.Take(0); !ok {
		t.Error("had to wait for a packet that was dropped")
	}
	q.Sent(1)
	if at, _ := q.Next(); at != us {
		t.Errorf("next at %v", at)
	}
}

// TestQueueModel: at most Depth wait, order is kept, nothing is lost, and the
// link is never used faster than its rate nor left idle while packets wait.
func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{
			Depth: rapid.IntRange(1, 40).Draw(t, "depth"),
			Rate:  Rate{rapid.Uint64Range(1e5, 1e9).Draw(t, "rate"), rapid.Bool().Draw(t, "bits")},
		}
		gaps := rapid.SliceOfN(rapid.Int64Range(0, 20000), 1, 200).Draw(t, "gaps")
		arrivals, bytes := make([]time.Duration, len(gaps)), make([]int, len(gaps))
		var now time.Duration
		for i, g := range gaps {
			now += time.Duration(g)
			arrivals[i], bytes[i] = now, 60+int(g)%1400
		}
		var q Queue[int]
		if err := q.SetLimits(l); err != nil {
			t.Fatal(err)
		}
		left, saw := run(&q, arrivals, bytes)

		cost := func(i int) float64 {
			if l.Rate.Bits {
				return float64(bytes[i]) * 8e9 / float64(l.Rate.PerSecond)
			}
			return 1e9 / float64(l.Rate.PerSecond)
		}
		free := 0.0 // of an ideal link
		for i := range arrivals {
			waiting := 0
			for j := range i {
				if left[j] >= arrivals[i] {
					waiting++
				}
			}
			if (left[i] < 0) != (waiting >= l.Depth) {
				t.Fatalf("packet %d left at %v although %d of %d waited", i, left[i], waiting, l.Depth)
			}
			if left[i] < 0 {
				continue
			}
			if saw[i].EnqDepth != waiting || saw[i].EnqTime != arrivals[i] {
				t.Fatalf("packet %d: %+v, but %d waited at %v", i, saw[i], waiting, arrivals[i])
			}
			ideal := max(free, float64(arrivals[i]))
			if d := float64(left[i]) - ideal; d < -2 || d > 2 {
				t.Fatalf("packet %d left at %v, ideally %v", i, left[i], ideal)
			}
			free = float64(left[i]) + cost(i)
		}
	})
}

func TestLimitsCheck(t *testing.T) {
	var q Queue[int]
	for _, l := range []Limits{{Depth: -1}, {Depth: MaxDepth + 1}, {Rate: Rate{PerSecond: 1 << 60}}} {
		if err := q.SetLimits(l); !errors.Is(err, ErrInvalid) || q.Limits() != (Limits{}) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for i := range DefaultDepth {
		if !q.Put(0, i) {
			t.Fatalf("full with %d", i)
		}
	}
	if q.Put(0, 0) {
		t.Error("a queue of the default depth takes one more")
	}
	// A smaller depth keeps what waits.
	if err := q.SetLimits(Limits{Depth: 1}); err != nil || q.Len() != DefaultDepth {
		t.Error(err, q.Len())
	}
	n := 0
	q.Drain(func(i int) {
		if i != n {
			t.Errorf("drained %d at %d", i, n)
		}
		n++
	})
	if n != DefaultDepth || !q.Put(0, 1) || q.Put(0, 2) {
		t.Error("the new depth is not in force")
	}
}

func TestParseRate(t *testing.T) {
	for s, want := range map[string]Rate{
		"0": {}, "0mbit": {}, "250": {250, false}, "20000pps": {20000, false}, "15kpps": {15000, false},
		"1.5Mpps": {1500000, false}, "100mbit": {1e8, true}, "2.5Gbit": {25e8, true}, "64kbit": {64000, true},
		"1e3bit": {1000, true}, "1tbit": {1e12, true},
	} {
		if got, err := ParseRate(s); got != want || err != nil {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "fast", "-1", "1mb", "mbit", "1 gbit", "0x10", "inf", "nan", "Infgbit", "1e30", "99tbit", "1_000"} {
		if got, err := ParseRate(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
	}
	if s := (Rate{}).String(); s != "unlimited" {
		t.Error(s)
	}
}

func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"0", "1kpps", "2.5gbit", "1e3bit"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRate(s)
		if err != nil || r == (Rate{}) {
			return
		}
		if err := (Limits{Rate: r}).Check(); err != nil {
			t.Fatal(err)
		}
		if back, err := ParseRate(r.String()); back != r || err != nil {
			t.Fatalf("%q is %+v, which is %v, which is %+v, %v", s, r, r, back, err)
		}
	})
}

func BenchmarkQueue(b *testing.B) {
	var q Queue[*int]
	if err := q.SetLimits(Limits{Rate: Rate{1e12, true}}); err != nil {
		b.Fatal(err)
	}
	x := new(int)
	b.ReportAllocs()
	var now time.Duration
	for b.Loop() {
		now += us
		q.Put(now, x)
		q.Take(now)
		q.Sent(1100)
	}
}
