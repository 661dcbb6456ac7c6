package main

import (
	"flag"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

var seedFlag = flag.Uint64("model.seed", 0, "run TestRandom with this seed only, and print its faults")

// TestRandom: S1 and L1 in random worlds.
func TestRandom(t *testing.T) {
	seeds := uint64(60)
	switch {
	case os.Getenv("MCRDMA_LONG") != "":
		seeds = 20_000
	case testenv.Race:
		seeds = 20
	}
	first := uint64(1)
	if *seedFlag != 0 {
		first, seeds = *seedFlag, 1
	}
	var (
		next atomic.Uint64
		wg   sync.WaitGroup
		mu   sync.Mutex
		sum  runStats
	)
	next.Store(first - 1)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for s := next.Add(1); s < first+seeds && !t.Failed(); s = next.Add(1) {
				r, err := random(s, goMerger{}, nil)
				if *seedFlag != 0 {
					t.Log(strings.Join(r.log, "\n"))
				}
				if err != nil {
					r, err = shrink(s, func() merger { return goMerger{} })
					t.Errorf("seed %d: %v, with these faults:\n%s\nreplay: go test ./tests/model -run 'TestRandom$' -v -model.seed=%d",
						s, err, strings.Join(r.log, "\n"), s)
				}
				mu.Lock()
				sum.add(r.stats)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d seeds: %+v", seeds, sum)
	if *seedFlag == 0 && (sum.Faults == 0 || sum.Removed == 0 || sum.Lied == 0 || sum.Restarts == 0 || sum.RNRs == 0) {
		t.Errorf("the worlds are not what they should be: %+v", sum)
	}
}

func (s *runStats) add(o runStats) {
	s.Packets += o.Packets
	s.Faults += o.Faults
	s.Completed += o.Completed
	s.Removed += o.Removed
	s.Lied += o.Lied
	s.Restarts += o.Restarts
	s.RNRs += o.RNRs
}

// TestRandomFindsMistakesWithoutRace also shrinks the faults to a few.
func TestRandomFindsMistakesWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, parallel)
	for _, m := range mistakes {
		if m.v.allSlots || m.v.pairwise || m.v.noSpread {
			continue // needs three members, or is rare
		}
		found := false
		for seed := uint64(1); seed < 300 && !found; seed++ {
			if _, err := random(seed, m.v, nil); err == nil {
				continue
			}
			r, err := shrink(seed, func() merger { return m.v })
			t.Logf("%s: seed %d, %d faults: %v", m.name, seed, r.stats.Faults, err)
			found = err != nil
			if r.stats.Faults > 40 {
				t.Errorf("%s: seed %d still has %d faults", m.name, seed, r.stats.Faults)
			}
		}
		if !found {
			t.Errorf("%s: not found", m.name)
		}
	}
}
