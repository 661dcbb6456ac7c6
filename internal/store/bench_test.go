package store

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fill makes n pairs of 256 bytes.
func fill(b *testing.B, s *Store, n int) {
	var edits []Edit
	for i := range n {
		edits = append(edits, Edit{"b", fmt.Appendf(nil, "%06d", i), make([]byte, 256)})
	}
	mustCommit(b, s, edits...)
}

// BenchmarkCommit measures commits of one pair of 256 bytes, by so many callers
// at once, each of which waits for its own.
func BenchmarkCommit(b *testing.B) {
	for _, callers := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			s := mustOpen(b, filepath.Join(b.TempDir(), "x.db"), Options{})
			value := make([]byte, 256)
			fill(b, s, 2000) // an agent's usual state
			took := make([]time.Duration, b.N)
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
						start := time.Now()
						if err := s.Commit(b.Context(), Edit{"b", fmt.Appendf(nil, "%06d", i*7919%4000), value}); err != nil {
							b.Error(err)
							return
						}
						took[i] = time.Since(start)
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			slices.Sort(took)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
			b.ReportMetric(float64(took[b.N/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[b.N*99/100].Microseconds()), "p99-µs")
		})
	}
}

// BenchmarkOpen measures opening, with its check, a file with 10,000 pairs.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "x.db")
	s := mustOpen(b, path, Options{NoSync: true})
	fill(b, s, 10_000)
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		s, err := Open(b.Context(), path, Options{NoSync: true})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
