package replica

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/mcrdmatest"
)

// BenchmarkWrite: writes at the primary, so many at a time, beside WRITEs with immediate of a group alone.
func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct{ size, depth int }{{4 << 10, 1}, {4 << 10, 32}, {1 << 20, 8}} {
		name := fmt.Sprintf("%dKiB,depth=%d", c.size>>10, c.depth)
		b.Run(name+"/volume", func(b *testing.B) {
			r := newRig(b, 3, 2, 256<<20, Options{Mode: mcrdma.ModeRequire})
			r.acting(3)
			v := r.volume(r.primary())
			blocks := (256 << 20) / c.size
			parallel(b, c.size, c.depth, func(ctx context.Context, i int) error {
				buf, err := v.Buffer(ctx, c.size)
				if err != nil {
					return err
				}
				return v.WriteBuffer(ctx, buf, int64(i*7919%blocks)*int64(c.size), false)
			})
		})
		b.Run(name+"/group", func(b *testing.B) { benchGroup(b, c.size, c.depth) })
	}
}

// parallel makes b.N calls.
func parallel(b *testing.B, size, depth int, f func(ctx context.Context, i int) error) {
	b.SetBytes(int64(size))
	b.ReportAllocs()
	next := make(chan int)
	var wg sync.WaitGroup
	for range depth {
		wg.Go(func() {
			for i := range next {
				if err := f(b.Context(), i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	before := processorTime(b)
	b.ResetTimer()
	for i := range b.N {
		next <- i
	}
	close(next)
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op") // all hosts, and the switch
	runtime.GC()
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchGroup(b *testing.B, size, depth int) {
	rack := mcrdmatest.Start(b, 3)
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	const ring = 64 << 20
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, h := range []string{"h2", "h3"} {
		client := rack.Dial(h)
		mem, err := client.Alloc(ring)
		must(err)
		l, err := client.Listen(b.Context(), mcrdma.ListenConfig{Service: "bench", Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) {
			return &mcrdma.Grant{Regions: []mcrdma.Piece{mem.All()}, Receives: make([]mcrdma.Piece, 512), Replenish: true}, nil
		}})
		must(err)
		wg.Go(func() {
			m, err := l.Accept(context.Background())
			for err == nil {
				_, err = m.Recv(context.Background())
			}
		})
	}
	sender := rack.Dial("h1")
	mem, err := sender.Alloc(depth * size)
	must(err)
	g, err := sender.Create(b.Context(), mcrdma.GroupConfig{Service: "bench", Receivers: []string{"h2", "h3"}, Mode: mcrdma.ModeRequire, Regions: []mcrdma.Region{{Length: ring}}})
	must(err)
	parallel(b, size, depth, func(ctx context.Context, i int) error {
		return g.WriteImm(ctx, mcrdma.At{Offset: uint64(i * size % ring)}, 0, mem.Slice(i%depth*size, size))
	})
	must(g.Close(context.Background()))
}
