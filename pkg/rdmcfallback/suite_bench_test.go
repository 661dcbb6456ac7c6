package rdmcfallback_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

// BenchmarkSmall takes the time from a small message's Send until all members have
// it, with the ring and as blocks.
func BenchmarkSmall(b *testing.B) {
	for _, carrier := range []string{"tcp", "rdma"} {
		for _, size := range []int{16, 1 << 10, 10 << 10} {
			for _, n := range []int{2, 4, 8, 17} {
				for _, name := range []string{"ring", "blocks"} {
					b.Run(fmt.Sprintf("%s/size=%d/n=%d/%s", carrier, size, n, name), func(b *testing.B) {
						small(b, carriers[carrier], n, size, rings[name])
					})
				}
			}
		}
	}
}

func small(b *testing.B, connect Connect, n, size, smallMax int) {
	var complete sync.WaitGroup
	members := join(b, rdmcfallback.Config{SmallMax: smallMax}, connect(b, n), func(_ int, c *rdmcfallback.Config) {
		buf := make([]byte, size)
		c.Incoming = func(int64) ([]byte, error) { return buf, nil }
		c.Complete = func([]byte) { complete.Done() }
	})
	msg, ctx := make([]byte, size), limited(b)
	send := func() {
		complete.Add(n)
		if err := members[0].Send(ctx, msg); err != nil {
			b.Fatal(err)
		}
		complete.Wait()
	}
	for range 50 {
		send()
	}
	b.ReportAllocs()
	for b.Loop() {
		send()
	}
	b.StopTimer()
	closeAll(b, members)
	for i, m := range members {
		if m.err != nil {
			b.Errorf("member %d: %v", i, m.err)
		}
	}
}
