package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/collective"
)

// TestCollectiveLanesWithoutRace: operations of several lanes run, from a seed, with few slots. Contexts
// end in the middle, and each lane shrinks for itself, while others still combine. All results are right.
func TestCollectiveLanesWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "it takes ten times as long, and TestTwoRanksDie has the detector")
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			inVirtualTime(t, seed%2 == 0, func(l *lab) { l.lanes(seed) })
		})
	}
}

func (l *lab) lanes(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	lanes, slots := 2+random.IntN(3), 1+random.IntN(3)
	r := l.join(2+random.IntN(3), func(c *collective.Config) { c.Lanes, c.Slots = lanes, slots })
	r.each(func(ctx context.Context, i int, c *collective.Comm) error {
		errs := make([]error, lanes)
		var wg, early sync.WaitGroup
		early.Add(lanes)
		for lane := range errs {
			wg.Go(func() { errs[lane] = steps(ctx, c.Lane(lane), seed, uint64(lane), uint64(i), &early) })
		}
		wg.Wait()
		r.comms[i] = c
		return errors.Join(errs...)
	})
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		r.comms[i], err = c.Shrink(ctx)
		return err
	})
	r.close()
}

// steps are those of a lane of a rank. After a failure all go back to the step of the last one. A context that ends
// fails all lanes, so none ends once a lane has taken 40 steps, and then the lane waits until the rank's other lanes
// have: no rank has ended a lane while another goes back there.
func steps(ctx context.Context, c *collective.Comm, seed, lane, rank uint64, early *sync.WaitGroup) (err error) {
	const calm = 40
	isEarly := true
	late := func() {
		if isEarly {
			isEarly = false
			early.Done()
		}
	}
	defer late()
	random := rand.New(rand.NewPCG(seed, 1+lane<<8|rank))
	for step := 0; step < calm+20; step++ {
		if step == calm {
			late()
			early.Wait()
		}
		short, stop := context.WithCancel(ctx)
		if isEarly && random.IntN(20) == 0 {
			short, stop = context.WithTimeout(ctx, time.Duration(random.IntN(500))*time.Microsecond)
		}
		err := aStep(short, c, rand.New(rand.NewPCG(seed<<8|lane, uint64(step))), random)
		for stop(); err != nil; {
			if !errors.Is(err, collective.ErrGivenUp) || ctx.Err() != nil {
				return fmt.Errorf("lane %d, step %d: %w", lane, step, err)
			}
			if c, err = c.Shrink(ctx); err != nil {
				return err
			}
			at := []int{step - 1}
			if err = collective.Allreduce(ctx, c, at, collective.Min); err == nil {
				step = at[0]
			}
		}
	}
	return nil
}

// aStep is a reduce-scatter or an allreduce of a few elements or blocks, of which some combinations take long.
func aStep(ctx context.Context, c *collective.Comm, script, random *rand.Rand) (err error) {
	n := []int{1, 100, 9000}[script.IntN(3)]
	in, first := make([]int, n*c.Size()), 0
	for i := range in {
		in[i] = 1000*c.Rank() + i
	}
	op := func(dst, src []int) {
		if random.IntN(20) == 0 {
			time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
		}
		collective.Sum(dst, src)
	}
	out := in
	if script.IntN(2) == 0 {
		err = collective.Allreduce(ctx, c, in, op)
	} else {
		out, first = make([]int, n), c.Rank()*n
		err = collective.ReduceScatter(ctx, c, out, in, op)
	}
	for i, v := range out {
		if want := 500*c.Size()*(c.Size()-1) + c.Size()*(first+i); err == nil && v != want {
			return fmt.Errorf("element %d of %d is %d, and not %d", first+i, len(in), v, want)
		}
	}
	return err
}
