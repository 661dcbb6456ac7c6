package mcrdma

import (
	"math/rand/v2"
	"testing"
)

// What is said of a time is never more than was complete then, and when marks of it
// are kept, it is no older than the time between two.
func TestMarks(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var m marks
		var at int64 = 1 << 50
		var complete uint64
		truth := map[int64]uint64{}
		var times []int64
		for range 3000 {
			at += rng.Int64N(3000)
			m.put(at, complete) // what is being completed is not yet
			complete += rng.Uint64N(5)
			truth[at] = complete
			times = append(times, at)
		}
		for i, x := range times {
			got := m.before(x + 1)
			if got > truth[x] {
				t.Fatalf("seed %d: %d are said to be complete at %d, and %d were", seed, got, x, truth[x])
			}
			if i > len(times)-100 && got+40 < truth[x] {
				t.Fatalf("seed %d: only %d are said to be complete, and %d were", seed, got, truth[x])
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
