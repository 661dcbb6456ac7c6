package engine

import (
	"fmt"
	"math"
	"math/bits"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

const mib = 1 << 20

// whole runs one message through a group and returns how long it took from
// joining until the last member had it.
func whole(t *testing.T, cfg Config, n int, size int64, adapt func(*simulator)) time.Duration {
	t.Helper()
	s := newSimulator(t, 1, cfg, n)
	s.script = []int64{size}
	if adapt != nil {
		adapt(s)
	}
	s.run()
	s.checkClean()
	last := time.Duration(0)
	for _, m := range s.members {
		last = max(last, m.finishedAt[0])
	}
	return last
}

// The bound: 64 MB in blocks of 1 MB, on equal links, within 1.02 of the
// steps that the algorithm needs.
func TestSpeedOnEqualLinks(t *testing.T) {
	for _, receivers := range []int{3, 7, 10, 31, 100, 127, 511} {
		if testenv.Race && receivers > 127 {
			t.Log("larger groups without the race detector")
			break
		}
		n, k := receivers+1, 64
		steps := bits.Len(uint(n-1)) + k - 1
		bound := time.Duration(steps) * time.Millisecond
		for _, latency := range []time.Duration{0, 5 * time.Microsecond, 50 * time.Microsecond} {
			got := whole(t, Config{}, n, int64(k)*mib, func(s *simulator) {
				s.latency = func() time.Duration { return latency }
			})
			ratio := float64(got) / float64(bound)
			t.Logf("%d receivers, latency %v: %v, %.4f of %d steps", receivers, latency, got, ratio, steps)
			// A step takes as long as a block on the wire, its way, and that of the
			// next step's being ready.
			if got > time.Duration(steps+2)*(time.Millisecond+2*latency) || latency <= 5*time.Microsecond && ratio > 1.02 {
				t.Errorf("%d receivers, latency %v: %v, %.4f of the bound %v", receivers, latency, got, ratio, bound)
			}
		}
	}
}

// DSN §4.5: with one link at half speed and n = 64 the bandwidth is at least lT'/(T+(l-1)T') = 85.6 %.
func TestOneSlowLink(t *testing.T) {
	const n, k = 64, 1024
	fast := whole(t, Config{}, n, k*mib, nil)
	worst := 1.0
	for _, link := range [][2]int{{0, 1}, {0, 32}, {5, 7}, {10, 42}, {62, 63}} {
		slow := whole(t, Config{}, n, k*mib, func(s *simulator) {
			s.factor = func(from, to int) float64 {
				if from == link[0] && to == link[1] || from == link[1] && to == link[0] {
					return 2
				}
				return 1
			}
		})
		share := float64(fast) / float64(slow)
		t.Logf("link %v at half speed: %v instead of %v, %.1f %%", link, slow, fast, 100*share)
		worst = min(worst, share)
	}
	if worst < 0.856 {
		t.Errorf("%.1f %% of the bandwidth, below 85.6 %%", 100*worst)
	}
}

// DSN §4.5: a delay of a node delays the end by no more than that.
func TestDelayedMember(t *testing.T) {
	const k = 64
	for _, n := range []int{16, 11, 2} {
		undelayed := whole(t, Config{}, n, k*mib, nil)
		for member := range n {
			if testenv.Race && member%5 != 1 {
				continue
			}
			for _, delay := range []time.Duration{300 * time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
				for _, from := range []time.Duration{0, 10 * time.Millisecond, 40500 * time.Microsecond} {
					got := whole(t, Config{}, n, k*mib, func(s *simulator) {
						s.pause = func(m int, now time.Duration) time.Duration {
							if m == member && now >= from && now < from+delay {
								return from + delay
							}
							return 0
						}
					})
					if got > undelayed+delay {
						t.Errorf("n=%d: member %d pausing from %v for %v delays the end from %v to %v", n, member, from, delay, undelayed, got)
					}
				}
			}
		}
	}
}

func TestSpeedOfAlgorithms(t *testing.T) {
	const n, k = 8, 32
	for a, steps := range map[schedule.Algorithm]int{
		schedule.BinomialPipeline: 3 + k - 1,
		schedule.Chain:            n + k - 2,
		schedule.BinomialTree:     3 * k,
		schedule.Sequential:       (n - 1) * k,
	} {
		got := whole(t, Config{Algorithm: a}, n, k*mib, nil)
		if ratio := float64(got) / float64(time.Duration(steps)*time.Millisecond); math.Abs(ratio-1) > 0.02 {
			t.Errorf("%v: %v, %.3f of %d steps", a, got, ratio, steps)
		}
	}
}

// Messages follow each other without waiting for the last member.
func TestSpeedOfSequences(t *testing.T) {
	for _, n := range []int{2, 3, 4, 8, 13, 16} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := newSimulator(t, 1, Config{}, n)
			const count, k = 50, 16
			for range count {
				s.script = append(s.script, k*mib)
			}
			s.latency = func() time.Duration { return 10 * time.Microsecond }
			s.run()
			s.checkClean()
			each := s.now / count
			t.Logf("n=%d: %v for each message of %d blocks", n, each, k)
		})
	}
}
