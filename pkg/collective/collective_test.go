package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/mcrdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A room is a rack of hosts with a client each.
type room struct {
	t       testing.TB
	rack    *mcrdmatest.Rack
	hosts   []string
	clients []*mcrdma.Client
	worlds  int
}

func newRoom(t testing.TB, hosts int) *room {
	t.Helper()
	r := &room{t: t, rack: mcrdmatest.Start(t, hosts)}
	for i := range hosts {
		r.hosts = append(r.hosts, fmt.Sprint("h", i+1))
		r.clients = append(r.clients, r.rack.Dial(r.hosts[i]))
	}
	return r
}

// A world is ranks.
type world struct {
	t     testing.TB
	comms []*Comm
}

// join joins ranks at the first hosts.
func (r *room) join(size int, change func(*Config)) *world {
	r.t.Helper()
	r.worlds++
	w := &world{t: r.t, comms: make([]*Comm, size)}
	w.each(func(ctx context.Context, rank int, _ *Comm) (err error) {
		cfg := Config{Service: fmt.Sprint("world", r.worlds), Hosts: r.hosts[:size], Rank: rank}
		if change != nil {
			change(&cfg)
		}
		w.comms[rank], err = Join(ctx, r.clients[rank], cfg)
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

// inputs are what ranks have: floats of which sums depend on the order.
func inputs[T int32 | float64](seed uint64, ranks, n int) (all [][]T) {
	r := rand.New(rand.NewPCG(seed, 5))
	for range ranks {
		x := make([]T, n)
		for i := range x {
			x[i] = T((r.Float64() - 0.5) * float64(int64(1)<<r.IntN(30)))
		}
		all = append(all, x)
	}
	return all
}

// combined is what the documentation says, in pairs of pairs.
func combined[T Element](all [][]T) []T {
	if len(all) == 1 {
		return slices.Clone(all[0])
	}
	half := 1
	for 2*half < len(all) {
		half *= 2
	}
	a, b := combined(all[:half]), combined(all[half:])
	Sum(a, b)
	return a
}

// allOperations does each operation with so many elements for each rank, and compares what it gives with a serial reference, bit by bit.
func allOperations[T int32 | float64](ctx context.Context, c *Comm, seed uint64, n int) error {
	rank, size := c.Rank(), c.Size()
	root := int(seed) % size
	all := inputs[T](seed, size, n*size)
	sum := combined(all)
	own := func(x []T) []T { return x[rank*n : (rank+1)*n] }
	same := func(what string, got, want []T) error {
		if !bytes.Equal(bytesOf(got), bytesOf(want)) {
			return fmt.Errorf("%s of %d elements at each of %d ranks gives something else", what, n, size)
		}
		return nil
	}
	buf := slices.Clone(all[rank])
	err := errors.Join(Allreduce(ctx, c, buf, Sum), same("allreduce", buf, sum))
	copy(buf, all[rank])
	err = errors.Join(err, Broadcast(ctx, c, root, buf), same("broadcast", buf, all[root]))
	copy(buf, all[rank])
	want := all[rank]
	if rank == root {
		want = sum
	}
	err = errors.Join(err, Reduce(ctx, c, root, buf, Sum), same("reduce", buf, want))
	part := make([]T, n)
	err = errors.Join(err, ReduceScatter(ctx, c, part, all[rank], Sum), same("reduce-scatter", part, own(sum)))
	clear(buf)
	want = nil
	for r := range size {
		want = append(want, all[r][r*n:(r+1)*n]...)
	}
	err = errors.Join(err, Allgather(ctx, c, buf, own(all[rank])), same("allgather", buf, want))
	copy(own(buf), own(all[rank]))
	return errors.Join(err, Allgather(ctx, c, buf, own(buf)), same("allgather in place", buf, want), c.Barrier(ctx))
}

// everything does all operations with so many elements, on two lanes at a time.
func (w *world) everything(elements ...int) {
	w.t.Helper()
	w.each(func(ctx context.Context, _ int, c *Comm) error {
		var other error
		var wg sync.WaitGroup
		wg.Go(func() {
			for i, n := range elements {
				other = errors.Join(other, allOperations[int32](ctx, c.Lane(1), uint64(100+i), n))
			}
		})
		var err error
		for i, n := range elements {
			err = errors.Join(err, allOperations[float64](ctx, c, uint64(i), n))
		}
		wg.Wait()
		return errors.Join(err, other)
	})
}

// All operations give what a serial reference gives, by the switch and by hosts. More ranks are in tests/scenario.
func TestOperations(t *testing.T) {
	r := newRoom(t, 6)
	for _, c := range []struct {
		ranks    int
		elements []int // of each rank
		change   func(*Config)
	}{
		{2, []int{0, 1, 500, 1 << 17}, nil},
		{3, []int{1, 11111}, func(c *Config) { c.Degree, c.Small = 1, -1 }},
		{5, []int{7, 100, 20000}, func(c *Config) { c.Mode, c.Degree = mcrdma.ModeOff, 3 }},
		{6, []int{0, 13, 1000}, func(c *Config) { c.Slots, c.Block = 1, 48*16 }},
		{16, []int{1, 30, 600}, nil},
	} {
		w := r.join(c.ranks, c.change)
		w.everything(c.elements...)
		w.close()
	}
}

// A single rank has everything already.
func TestAlone(t *testing.T) {
	w := newRoom(t, 2).join(1, nil)
	w.everything(0, 1, 1000)
	w.close()
}

// Packets are lost and come late.
func TestDisturbed(t *testing.T) {
	r := newRoom(t, 4)
	w := r.join(4, nil)
	for _, h := range r.hosts {
		r.rack.Disturb(h, 200)
	}
	w.everything(1, 3000)
	for _, h := range r.hosts {
		r.rack.Disturb(h, 0)
	}
	w.close()
}
