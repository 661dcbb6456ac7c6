package mcrdma

import (
	"math/rand/v2"
	"testing"
)

// What is said of a time is never more than was complete then, and not much less.
func TestMarks(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var m marks
		var at int64 = 1 << 50
		var complete uint64
		truth := map[int64]uint64{}
		var times []int64
		for range 30_000 {
			at += rng.Int64N(3000)
			m.put(at, complete) // what is being completed is not yet
			complete += rng.Uint64N(5)
			truth[at] = complete
			times = append(times, at)
		}
		for _, x := range times {
			got := m.before(x + 1)
			if got > truth[x] {
				t.Fatalf("seed %d: %d are said to be complete at %d, and %d were", seed, got, x, truth[x])
			}
			age := at - x
			if missed := truth[x] - got; age < 500_000 && missed > 20 || age < 20_000_000 && missed > 400 {
				t.Fatalf("seed %d: only %d are said to be complete %d µs ago, and %d were", seed, got, age, truth[x])
			}
		}
		if n := m.before(1); n != 0 {
			t.Errorf("%d operations were complete before the beginning", n)
		}
		m.put(at-10_000, complete)
		if n := m.before(at - 1<<30); n != 0 {
			t.Errorf("%d were complete long ago", n)
		}
	}
}
