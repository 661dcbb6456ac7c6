package traffic

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// open returns a port of some classes with a buffer of its own.
func open(t testing.TB, m Memory, classes int, r Rate) *Port[int] {
	t.Helper()
	b, err := NewBuffer(m)
	if err != nil {
		t.Fatal(err)
	}
	return share(t, b, classes, r)
}

// share returns a port with a buffer that others use too.
func share(t testing.TB, b *Buffer, classes int, r Rate) *Port[int] {
	t.Helper()
	p, err := NewPort[int](b, classes)
	if err == nil {
		err = p.SetRate(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// until takes what may leave by a time, as early as it may, and gives it to f.
func (p *Port[T]) until(now time.Duration, bytes func(T) int, f func(at time.Duration, item T, s Seen)) {
	for {
		at, ok := p.Next()
		if !ok || at > now {
			return
		}
		item, seen, ok := p.Take(at)
		if !ok {
			panic("Next and Take disagree")
		}
		f(at, item, seen)
		p.Sent(bytes(item))
	}
}

// run lets a port work by virtual time: packets arrive at the given times, each
// of that many bytes, and leave as early as they may. It returns when each left,
// or -1 for a drop, and what it saw.
func run(p *Port[int], arrivals []time.Duration, bytes []int) (left []time.Duration, saw []Seen) {
	left, saw = make([]time.Duration, len(arrivals)), make([]Seen, len(arrivals))
	for i := range left {
		left[i] = -1
	}
	size := func(k int) int { return bytes[k] }
	note := func(at time.Duration, k int, s Seen) { left[k], saw[k] = at, s }
	for i, at := range arrivals {
		p.until(at-1, size, note) // what arrives comes before what leaves at the same time
		p.Put(at, 0, bytes[i], i)
	}
	p.until(1<<62, size, note)
	return left, saw
}

const us = time.Microsecond

func ones(n int) []int { return slices.Repeat([]int{1}, n) }

func TestRates(t *testing.T) {
	at := func(d ...time.Duration) []time.Duration { return d }
	for _, c := range []struct {
		name     string
		rate     Rate
		arrivals []time.Duration
		bytes    []int
		want     []time.Duration
	}{
		{"no limit", Rate{}, at(0, 0, 3*us), ones(3), at(0, 0, 3*us)},
		{"packets", Rate{PerSecond: 1000}, at(0, 0, 0, 10*us), []int{1, 9000, 1, 1},
			at(0, 1000*us, 2000*us, 3000*us)},
		{"idle in between", Rate{PerSecond: 1000}, at(0, 500*us, 9000*us, 9001*us), ones(4),
			at(0, 1000*us, 9000*us, 10000*us)},
		{"bits", Rate{1e9, true}, at(0, 0, 0, 0), []int{125, 1250, 12500, 1}, at(0, us, 11*us, 111*us)},
		{"fractions add up", Rate{PerSecond: 3e8}, at(0, 0, 0, 0, 0, 0, 0), ones(7),
			at(0, 3, 6, 10, 13, 16, 20)},
		{"no room", Rate{PerSecond: 1e6}, at(0, 0, 0, us, us, 2*us), slices.Repeat([]int{1000}, 6),
			at(0, us, -1, 2*us, -1, 3*us)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := open(t, Memory{Shared: 1, Reserve: 2000}, 1, c.rate)
			if c.name != "no room" {
				p = open(t, Memory{}, 1, c.rate)
			}
			if left, _ := run(p, c.arrivals, c.bytes); !slices.Equal(left, c.want) {
				t.Errorf("left %v, want %v", left, c.want)
			}
		})
	}
}

// TestDepths: as in bmv2, a packet does not see itself.
func TestDepths(t *testing.T) {
	p := open(t, Memory{Shared: 1, Reserve: 100}, 1, Rate{PerSecond: 1e6})
	_, saw := run(p, []time.Duration{0, 0, 0, 0, 2 * us}, []int{10, 20, 70, 2, 30})
	want := []Seen{{0, 0, Depth{}, Depth{2, 90}}, {0, 0, Depth{1, 10}, Depth{1, 70}}, {0, 0, Depth{2, 30}, Depth{1, 30}},
		{}, {0, 2 * us, Depth{1, 70}, Depth{}}}
	if !slices.Equal(saw, want) {
		t.Errorf("saw %v, want %v", saw, want)
	}
	if s := p.Stats(0); s != (ClassStats{Queued: 4, Dropped: 1, Sent: 4, Bytes: 130, Peak: Depth{3, 100}}) {
		t.Errorf("%+v", s)
	}
}

// TestLate: a late Take sends what should have left, so that the rate is kept.
func TestLate(t *testing.T) {
	p := open(t, Memory{}, 2, Rate{PerSecond: 1e6})
	put := func(now time.Duration, n int) {
		for i := range n {
			p.Put(now, i%2, 100, i)
		}
	}
	take := func(now time.Duration) (n int) {
		for {
			if _, _, ok := p.Take(now); !ok {
				return n
			}
			p.Sent(1)
			n++
		}
	}
	put(0, 10)
	var got []int
	for _, now := range []time.Duration{0, 4500, 4900, 5000, 20 * us, 20 * us} {
		got = append(got, take(now))
	}
	if want := []int{1, 4, 0, 1, 4, 0}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	// Time during which no packet waited is not made up for.
	put(100*us, 10)
	if n := take(102 * us); n != 3 {
		t.Errorf("%d left, want 3", n)
	}
	// Nor is the time lost during which a lower class waited, if a higher one goes first.
	p.Put(109*us, 1, 100, 0)
	if n := take(110 * us); n != 8 {
		t.Errorf("%d left, want 8", n)
	}
}

// TestDropBehind: a packet that was not sent costs nothing.
func TestDropBehind(t *testing.T) {
	p := open(t, Memory{}, 1, Rate{PerSecond: 1e6})
	for i := range 3 {
		p.Put(0, 0, 100, i)
	}
	p.Take(0)
	if _, _, ok := p.Take(0); !ok {
		t.Error("had to wait for a packet that was dropped")
	}
	p.Sent(1)
	if at, _ := p.Next(); at != us {
		t.Errorf("next at %v", at)
	}
}

// TestPortModel checks a port against a naive one, which looks at all that came
// before: order is kept in each class, a higher class goes first, what finds no room
// by the rule of the buffer is dropped and nothing else, and the link is never used
// faster than its rate nor left idle while packets wait.
func TestPortModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := Memory{Shared: rapid.IntRange(1, 30000).Draw(t, "shared"), Reserve: rapid.IntRange(1, 4000).Draw(t, "reserve")}
		r := Rate{rapid.Uint64Range(1e5, 1e9).Draw(t, "rate"), rapid.Bool().Draw(t, "bits")}
		gaps := rapid.SliceOfN(rapid.Int64Range(0, 20000), 1, 200).Draw(t, "gaps")
		const classes = 3
		b, err := NewBuffer(m)
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewPort[int](b, classes)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.SetRate(r); err != nil {
			t.Fatal(err)
		}

		var now time.Duration
		var arrivals []time.Duration
		size := func(i int) int { return 60 + int(gaps[i])%1400 }
		class := func(i int) int { return int(gaps[i]) % classes }
		var waiting [classes][]int // by the naive port
		sum := func(k int) (n int) {
			for _, i := range waiting[k] {
				n += size(i)
			}
			return n
		}
		free := 0.0 // of an ideal link
		left := func(at time.Duration, i int, s Seen) {
			high := classes - 1
			for len(waiting[high]) == 0 {
				high--
			}
			if want := waiting[high][0]; i != want || s.Class != high {
				t.Fatalf("packet %d of class %d left before packet %d of class %d", i, s.Class, want, high)
			}
			waiting[high] = waiting[high][1:]
			if want := (Depth{len(waiting[high]), sum(high)}); s.Deq != want || s.Since != arrivals[i] {
				t.Fatalf("packet %d saw %+v, want %+v", i, s, want)
			}
			first := arrivals[i]
			for _, w := range waiting {
				if len(w) > 0 {
					first = min(first, arrivals[w[0]])
				}
			}
			ideal := max(free, float64(first))
			if d := float64(at) - ideal; d < -2 || d > 2 {
				t.Fatalf("packet %d left at %v, ideally %v", i, at, ideal)
			}
			cost := 1e9 / float64(r.PerSecond)
			if r.Bits {
				cost *= 8 * float64(size(i))
			}
			free = float64(at) + cost
		}
		for i, g := range gaps {
			now += time.Duration(g)
			arrivals = append(arrivals, now)
			p.until(now-1, size, left)
			k := class(i)
			shared := m.Shared
			for j := range classes {
				shared -= max(0, sum(j)-m.Reserve)
			}
			if shared < 0 || b.Free() != shared {
				t.Fatalf("%d shared bytes are free, want %d", b.Free(), shared)
			}
			more := sum(k) + size(i) - m.Reserve
			room := more <= 0 || more <= shared
			if p.Put(now, k, size(i), i) != room {
				t.Fatalf("packet %d was taken: %v, with %d bytes before it and %d shared ones free", i, !room, sum(k), shared)
			}
			if room {
				waiting[k] = append(waiting[k], i)
			}
		}
		p.until(1<<62, size, left)
		if b.Free() != m.Shared || p.Len() != 0 {
			t.Fatalf("%d of %d bytes are free of an empty port", b.Free(), m.Shared)
		}
	})
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
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		if back, err := ParseRate(r.String()); back != r || err != nil {
			t.Fatalf("%q is %+v, which is %v, which is %+v, %v", s, r, r, back, err)
		}
	})
}

func BenchmarkPort(b *testing.B) {
	p := open(b, Memory{}, 2, Rate{1e12, true})
	b.ReportAllocs()
	var now time.Duration
	for b.Loop() {
		now += us
		p.Put(now, 0, 1100, 1)
		p.Take(now)
		p.Sent(1100)
	}
}
