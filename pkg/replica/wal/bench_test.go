package wal

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// BenchmarkAppend appends entries of 4 KiB with a limited number not durable: group commit shares
// the syncs.
func BenchmarkAppend(b *testing.B) {
	for _, depth := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			synced := make(chan uint64, depth)
			l, err := Open(filepath.Join(b.TempDir(), "log"), 7, Options{Synced: func(seq uint64, err error) {
				if err != nil {
					b.Error(err)
				}
				synced <- seq
			}})
			if err != nil {
				b.Fatal(err)
			}
			data := make([]byte, 4096)
			b.SetBytes(4096)
			b.ReportAllocs()
			seq, done, trimmed := uint64(0), uint64(0), uint64(0)
			for index := uint64(1); b.Loop(); index++ {
				seq++
				v := core.Version{Epoch: 1, Index: index}
				l.Persist(core.Persist{Seq: seq, Change: core.Append{Version: v}}, &Entry{Version: v, Kind: Data, Length: 4096, Data: data})
				if index > trimmed+10000 {
					seq++
					trimmed = index - 5000
					l.Persist(core.Persist{Seq: seq, Change: core.Trim{To: trimmed}}, nil)
				}
				for seq-done >= uint64(depth) {
					done = <-synced
				}
			}
			for done < seq {
				done = <-synced
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
			b.ReportMetric(float64(l.Stats().Syncs)/float64(b.N), "fdatasyncs/append")
			if err := l.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}
