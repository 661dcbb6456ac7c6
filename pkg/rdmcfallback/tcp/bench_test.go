package tcp_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// BenchmarkRelay spreads 64 MB among members in one process.
func BenchmarkRelay(b *testing.B) {
	const size = 64 << 20
	for _, n := range []int{2, 4, 8} {
		for _, block := range []int{256 << 10, 1 << 20} {
			for _, a := range []schedule.Algorithm{schedule.BinomialPipeline, schedule.Chain, schedule.Sequential} {
				b.Run(fmt.Sprintf("n=%d/block=%dK/%v", n, block>>10, a), func(b *testing.B) {
					ts := connect(b, n)
					msgs := make([][]byte, n)
					for i := range msgs {
						msgs[i] = make([]byte, size)
						for j := range msgs[i] {
							msgs[i][j] = byte(i)
						}
					}
					s, err := schedule.New(a, n, int64(size/block), nil)
					if err != nil {
						b.Fatal(err)
					}
					b.SetBytes(size)
					b.ReportAllocs()
					for b.Loop() {
						var wg sync.WaitGroup
						for i, x := range ts {
							wg.Go(func() {
								if err := relay(b.Context(), x, s, i, block, msgs[i], 2); err != nil {
									b.Errorf("member %d: %v", i, err)
								}
							})
						}
						wg.Wait()
					}
				})
			}
		}
	}
}
