package collective

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/mcrdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is ranks at the hosts of a rack.
type world struct {
	t     testing.TB
	rack  *mcrdmatest.Rack
	hosts []string
	comms []*Comm
}

// join starts a rack, and joins a rank at each host.
func join(t testing.TB, size int, change func(*Config)) *world {
	t.Helper()
	w := &world{t: t, rack: mcrdmatest.Start(t, max(size, 2))}
	for i := range size {
		w.hosts = append(w.hosts, fmt.Sprint("h", i+1))
	}
	w.comms = make([]*Comm, size)
	var clients []*mcrdma.Client
	for _, h := range w.hosts {
		clients = append(clients, w.rack.Dial(h))
	}
	w.each(func(ctx context.Context, rank int, _ *Comm) (err error) {
		cfg := Config{Service: "test", Hosts: w.hosts, Rank: rank}
		if change != nil {
			change(&cfg)
		}
		w.comms[rank], err = Join(ctx, clients[rank], cfg)
		return err
	})
	return w
}

// each does something at all ranks at a time, and ends the test if it fails at one.
func (w *world) each(f func(ctx context.Context, rank int, c *Comm) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for rank, c := range w.comms {
		wg.Go(func() {
			if err := f(ctx, rank, c); err != nil {
				w.t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	wg.Wait()
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// close closes all ranks.
func (w *world) close() {
	w.t.Helper()
	w.each(func(ctx context.Context, _ int, c *Comm) error { return c.Close(ctx) })
}

func TestBasic(t *testing.T) {
	w := join(t, 4, nil)
	t.Log(w.comms[1].Explain())
	w.each(func(ctx context.Context, rank int, c *Comm) error {
		for _, n := range []int{0, 1, 1000, 100000, 1000000} {
			buf := make([]float32, n)
			for i := range buf {
				buf[i] = float32(rank + i)
			}
			begun := time.Now()
			if err := Allreduce(ctx, c, buf, Sum); err != nil {
				return err
			}
			t.Log(n, time.Since(begun))
			for i, v := range buf {
				if v != float32(6+4*i) {
					return fmt.Errorf("%d of %d is %v", i, n, v)
				}
			}
		}
		return nil
	})
	w.close()
}
