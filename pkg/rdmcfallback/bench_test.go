package rdmcfallback

import (
	"fmt"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// BenchmarkPipe sends messages of 64 blocks of 1 MiB to the other members, in
// memory: what everything but the network costs. One operation is one message.
func BenchmarkPipe(b *testing.B) {
	for _, a := range []schedule.Algorithm{schedule.BinomialPipeline, schedule.Chain, schedule.Sequential} {
		for _, n := range []int{2, 4, 8} {
			for _, ahead := range []int{0, 1} {
				b.Run(fmt.Sprintf("%v/n=%d/ahead=%d", a, n, ahead), func(b *testing.B) {
					benchmark(b, Config{Algorithm: a, Ahead: ahead}, n, 64<<20)
				})
			}
		}
	}
}

// BenchmarkBlocks has small blocks, so that the cost of each is seen. One
// operation is one message of 10000 blocks.
func BenchmarkBlocks(b *testing.B) {
	for _, n := range []int{2, 4, 7} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) { benchmark(b, Config{BlockSize: 64}, n, 64*10000) })
	}
}

// BenchmarkMessages sends small messages, as blocks and by the ring.
func BenchmarkMessages(b *testing.B) {
	for _, size := range []int{1, 10 << 10} {
		for _, n := range []int{2, 4, 16} {
			for name, small := range map[string]int{"ring": 0, "blocks": -1} {
				b.Run(fmt.Sprintf("size=%d/n=%d/%s", size, n, name), func(b *testing.B) { benchmark(b, Config{SmallMax: small}, n, size) })
			}
		}
	}
}

func benchmark(b *testing.B, cfg Config, n, size int) {
	ctx := b.Context()
	members := join(b, cfg, Pipe(n), func(i int, c *Config) {
		buf := make([][]byte, 2)
		for j := range buf {
			buf[j] = make([]byte, size)
		}
		next := 0
		c.Incoming = func(int64) ([]byte, error) { next++; return buf[next%2], nil }
		c.Complete = nil
	})
	msg := make([]byte, size)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N { // the end, after the loop, belongs to what is measured
		if err := members[0].Send(ctx, msg); err != nil {
			b.Fatal(err)
		}
	}
	for i, err := range closeAll(ctx, members) {
		if err != nil {
			b.Fatalf("member %d: %v", i, err)
		}
	}
}
