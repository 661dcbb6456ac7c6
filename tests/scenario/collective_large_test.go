package scenario

import (
	"context"
	"fmt"
	"os"
	"testing"
	"testing/synctest"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/collective"
)

// operand returns element i of a rank's input. Sums depend on the order.
func operand(rank, i int) float32 {
	x := uint32(i)*2654435761 ^ uint32(rank+1)*2246822519 //nolint:gosec // any bits do
	x ^= x >> 15
	return float32(int32(x*2654435769)) / 1024 //nolint:gosec // likewise
}

// summed returns the documented element i of the sum of ranks from lo up to hi, in pairs of pairs.
func summed(lo, hi, i int) float32 {
	if hi-lo == 1 {
		return operand(lo, i)
	}
	half := 1
	for 2*half < hi-lo {
		half *= 2
	}
	return summed(lo, lo+half, i) + summed(lo+half, hi, i)
}

// TestCollectiveLargeWithoutRace: all operations give the result of a serial reference, bit by bit,
// at all ranks: 64 MiB at 2 to 16 ranks in the long mode.
func TestCollectiveLargeWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "it takes ten times as long, and the tests with fewer bytes have the detector")
	counts, bytes := []int{4}, 256<<10
	if os.Getenv("MCRDMA_LONG") != "" {
		counts, bytes = []int{2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 64<<20
	}
	for _, n := range counts {
		t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLabOf(t, (n+1)/2, true)
				l.wait = prompt
				r := l.join(n, asUsual)
				r.large(bytes / 4 / n * n)
				r.close()
				l.judge()
			})
		})
	}
}

// large does all operations on that many elements in total, a multiple of the number of ranks.
func (r *ranks) large(elements int) {
	r.l.t.Helper()
	n := len(r.apps)
	sum, bufs, parts := make([]float32, elements), make([][]float32, n), make([][]float32, n)
	for i := range sum {
		sum[i] = summed(0, n, i)
	}
	for rank := range bufs {
		bufs[rank], parts[rank] = make([]float32, elements), make([]float32, elements/n)
	}
	root := n / 2
	for _, o := range []struct {
		name string
		do   func(ctx context.Context, c *collective.Comm, buf, part []float32) error
		want func(rank, i int) float32 // of buf
	}{
		{"allreduce", func(ctx context.Context, c *collective.Comm, buf, _ []float32) error {
			return collective.Allreduce(ctx, c, buf, collective.Sum)
		}, func(_, i int) float32 { return sum[i] }},
		{"broadcast", func(ctx context.Context, c *collective.Comm, buf, _ []float32) error {
			return collective.Broadcast(ctx, c, root, buf)
		}, func(_, i int) float32 { return operand(root, i) }},
		{"reduce", func(ctx context.Context, c *collective.Comm, buf, _ []float32) error {
			return collective.Reduce(ctx, c, root, buf, collective.Sum)
		}, func(rank, i int) float32 {
			if rank == root {
				return sum[i]
			}
			return operand(rank, i)
		}},
		{"reduce-scatter", func(ctx context.Context, c *collective.Comm, buf, part []float32) error {
			err := collective.ReduceScatter(ctx, c, part, buf, collective.Sum)
			copy(buf[c.Rank()*len(part):], part)
			return err
		}, func(rank, i int) float32 {
			if i/(elements/n) == rank {
				return sum[i]
			}
			return operand(rank, i)
		}},
		{"allgather", func(ctx context.Context, c *collective.Comm, buf, part []float32) error {
			copy(part, buf[c.Rank()*len(part):])
			return collective.Allgather(ctx, c, buf, part)
		}, func(_, i int) float32 { return operand(i/(elements/n), i) }},
	} {
		r.each(func(ctx context.Context, rank int, c *collective.Comm) error {
			buf := bufs[rank]
			for i := range buf {
				buf[i] = operand(rank, i)
			}
			if err := o.do(ctx, c, buf, parts[rank]); err != nil {
				return err
			}
			for i, v := range buf {
				if want := o.want(rank, i); v != want {
					return fmt.Errorf("%s: element %d of %d is %v, and not %v", o.name, i, elements, v, want)
				}
			}
			return nil
		})
	}
}
