package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/collective"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// inputs returns the ranks' inputs: floats whose sums depend on the order.
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

// combined returns the documented result, in pairs of pairs.
func combined[T collective.Element](all [][]T) []T {
	if len(all) == 1 {
		return slices.Clone(all[0])
	}
	half := 1
	for 2*half < len(all) {
		half *= 2
	}
	a, b := combined(all[:half]), combined(all[half:])
	collective.Sum(a, b)
	return a
}

// allOperations does each operation with that many elements per rank, and compares the result with
// a serial reference, exactly: there is no NaN, nor a negative zero.
func allOperations[T int32 | float64](ctx context.Context, c *collective.Comm, seed uint64, n int) error {
	rank, size := c.Rank(), c.Size()
	root := int(seed) % size
	all := inputs[T](seed, size, n*size)
	sum := combined(all)
	own := func(x []T) []T { return x[rank*n : (rank+1)*n] }
	same := func(what string, got, want []T) error {
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s of %d elements at each of %d ranks gives something else", what, n, size)
		}
		return nil
	}
	buf := slices.Clone(all[rank])
	err := errors.Join(collective.Allreduce(ctx, c, buf, collective.Sum), same("allreduce", buf, sum))
	copy(buf, all[rank])
	err = errors.Join(err, collective.Broadcast(ctx, c, root, buf), same("broadcast", buf, all[root]))
	copy(buf, all[rank])
	want := all[rank]
	if rank == root {
		want = sum
	}
	err = errors.Join(err, collective.Reduce(ctx, c, root, buf, collective.Sum), same("reduce", buf, want))
	part := make([]T, n)
	err = errors.Join(err, collective.ReduceScatter(ctx, c, part, all[rank], collective.Sum), same("reduce-scatter", part, own(sum)))
	want = nil
	for r := range size {
		want = append(want, all[r][r*n:(r+1)*n]...)
	}
	err = errors.Join(err, collective.Allgather(ctx, c, buf, own(all[rank])), same("allgather", buf, want))
	copy(own(buf), own(all[rank]))
	return errors.Join(err, collective.Allgather(ctx, c, buf, own(buf)), same("allgather in place", buf, want), c.Barrier(ctx))
}

// everything does all operations with that many elements, on two lanes in parallel.
func (r *ranks) everything(elements ...int) {
	r.l.t.Helper()
	r.each(func(ctx context.Context, _ int, c *collective.Comm) error {
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

// A set is ranks that do all operations, with that many elements per rank.
type set struct {
	ranks    int
	elements []int
	change   func(*collective.Config)
}

// operations tests sets in labs with that many hosts at each switch.
func operations(t *testing.T, perRack int, sets []set, change ...func(*lab)) {
	for _, switches := range []bool{true, false} {
		t.Run(map[bool]string{true: "switch", false: "relay"}[switches], func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLabOf(t, perRack, switches, change...)
				l.wait = prompt
				for _, s := range sets {
					r := l.join(s.ranks, s.change)
					r.everything(s.elements...)
					r.close()
					l.judge()
				}
			})
		})
	}
}

func asUsual(*collective.Config) {}

// TestCollectiveOperations: all operations give the result of a serial reference, for all
// algorithms.
func TestCollectiveOperations(t *testing.T) {
	operations(t, 3, []set{
		{2, []int{0, 1, 500, 20000}, asUsual},
		{3, []int{1, 3333}, func(c *collective.Config) { c.Degree, c.Small = 1, -1 }},
		{5, []int{7, 1000}, func(c *collective.Config) { c.Mode, c.Degree = mcrdma.ModeOff, 3 }},
		{6, []int{0, 13, 300}, func(c *collective.Config) { c.Slots, c.Block = 1, 48*16 }},
	})
}

// TestCollectiveOfManyWithoutRace: the same with up to 16 ranks and some MiB.
func TestCollectiveOfManyWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "it takes ten times as long, and the tests with fewer ranks have the detector")
	operations(t, 8, []set{
		{2, []int{1 << 18}, asUsual},
		{7, []int{0, 50, 2000}, asUsual},
		{16, []int{1, 30, 400}, asUsual},
	})
}

// TestCollectiveUplink: switches copy, so that a rank's cable carries data for all others once.
func TestCollectiveUplink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		l := newLabOf(t, 2, true, func(l *lab) {
			l.hosts[0].cable.Tap = func(side int, frame []byte) {
				if side == l.hosts[0].side {
					sent.Add(int64(len(frame)))
				}
			}
		})
		l.wait = prompt
		r := l.join(4, asUsual)
		const n = 1 << 17
		for _, c := range []struct {
			what  string
			do    func(ctx context.Context, c *collective.Comm, x []float64) error
			share float64 // of the bytes of x
		}{
			{"allreduce", func(ctx context.Context, c *collective.Comm, x []float64) error {
				return collective.Allreduce(ctx, c, x, collective.Sum)
			}, 1},
			{"broadcast", func(ctx context.Context, c *collective.Comm, x []float64) error {
				return collective.Broadcast(ctx, c, 0, x)
			}, 1},
			{"allgather", func(ctx context.Context, c *collective.Comm, x []float64) error {
				return collective.Allgather(ctx, c, x, x[c.Rank()*n/4:][:n/4])
			}, 0.25},
		} {
			before := sent.Load()
			r.each(func(ctx context.Context, _ int, comm *collective.Comm) error {
				return errors.Join(c.do(ctx, comm, make([]float64, n)), comm.Barrier(ctx))
			})
			if is := float64(sent.Load()-before) / (8 * n); is < c.share || is > c.share+0.09 { // headers, and answers to the others
				t.Errorf("%s: the first rank has sent %.3f of the bytes, and not %v", c.what, is, c.share)
			} else {
				t.Logf("%s: %.3f", c.what, is)
			}
		}
		r.close()
		l.judge()
	})
}

// TestCollectiveDisturbed: frames are lost and late, and the results are the same.
func TestCollectiveDisturbed(t *testing.T) {
	var lost, late atomic.Int32
	operations(t, 2, []set{{4, []int{1, 2000}, asUsual}}, func(l *lab) {
		r := rand.New(rand.NewPCG(3, 4))
		var mu sync.Mutex
		for _, h := range l.hosts {
			h.cable.Disturb = func() (bool, bool) {
				mu.Lock()
				defer mu.Unlock()
				switch r.IntN(200) {
				case 0:
					lost.Add(1)
					return true, false
				case 1:
					late.Add(1)
					return false, true
				}
				return false, false
			}
		}
	})
	t.Cleanup(func() {
		if lost.Load() < 20 || late.Load() < 20 {
			t.Errorf("%d frames were lost, and %d late", lost.Load(), late.Load())
		}
	})
}
