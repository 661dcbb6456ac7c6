package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// addSeeds adds the flags for the first seed and for the number of seeds.
func addSeeds(fs *pflag.FlagSet, first *uint64, n *int) {
	fs.Uint64Var(first, "seed", 1, "`number` that seeds everything random")
	fs.IntVar(n, "seeds", 1, "number of `seeds` to simulate each with, --seed and the following ones; values are means")
}

func checkSeeds(n int) error {
	if n < 1 || n > 1000 {
		return cli.Usagef("--seeds %d: want 1 to 1000", n)
	}
	return nil
}

func seedsText(first uint64, n int) string {
	if n == 1 {
		return fmt.Sprintf("seed %d", first)
	}
	return fmt.Sprintf("seeds %d to %d", first, first+uint64(n)-1) //nolint:gosec // checked
}

// A job is a simulation. Several run at a time.
type job struct {
	name   string
	weight float64 // relative run time
	run    func() error
}

// advise says what to do where switches cannot copy.
func advise(err error) error {
	switch {
	case errors.Is(err, bifurcation.ErrNoMergePoint):
		return fmt.Errorf("%w: switches cannot copy here; hosts can, by ways such as fanout, chain and rdmc", err)
	case errors.Is(err, bifurcation.ErrTooManyReceivers):
		return fmt.Errorf("%w: choose fewer receivers, or ways by which hosts copy, such as fanout, chain and rdmc", err)
	}
	return err
}

// perform runs jobs, as many at a time as there are processors, and shows progress. It ends at the
// first error, or when ctx ends, and does not wait for running simulations then.
func perform(ctx context.Context, cmd *cobra.Command, quiet bool, jobs []job) error {
	ctx, stop := cli.Interruptible(ctx)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := io.Discard
	if !quiet {
		out = cmd.ErrOrStderr()
	}
	progress := cli.NewProgress(out)
	defer progress.Done()
	var total, done float64
	next, results := make(chan job, len(jobs)), make(chan func() (job, error), len(jobs))
	for _, j := range jobs {
		total += j.weight
		next <- j
	}
	close(next)
	for range min(len(jobs), runtime.GOMAXPROCS(0)) {
		go func() {
			for j := range next {
				if ctx.Err() != nil {
					return
				}
				err := j.run()
				results <- func() (job, error) { return j, err }
			}
		}()
	}
	begin, left := time.Now(), len(jobs)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	text := func() string {
		s := fmt.Sprintf("%d of %s done", len(jobs)-left, cli.Plural(len(jobs), "simulation"))
		if done > 0 {
			spent := time.Since(begin)
			s += fmt.Sprintf(", some %v to go", time.Duration(float64(spent)*(total-done)/done).Round(time.Second))
		}
		return s
	}
	for left > 0 {
		select {
		case r := <-results:
			j, err := r()
			if err != nil {
				return fmt.Errorf("%s: %w", j.name, advise(err))
			}
			left--
			done += j.weight
			progress.Say(text)
		case <-tick.C:
			progress.Say(text)
		case <-ctx.Done():
			return errors.New("interrupted")
		}
	}
	return nil
}
