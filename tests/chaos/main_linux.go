// Command chaos is the fault matrix: runs of groups in labs of network namespaces, with
// real daemons, agents, switches and applications, into which faults are injected, all
// generated from a seed.
//
//	go run ./tests/chaos -seed 17      one run: plan, history, verdict
//	go run ./tests/chaos -row 3        one of those that are not drawn
//	go run ./tests/chaos -rows -runs 200
//	                                   all of those, and runs of seeds from 1 on
//	go run ./tests/chaos -fastpath -runs 20
//	                                   with switches whose packets the kernel processes; with -volumes, too
//	go run ./tests/chaos -liar         with a switch that acknowledges what no member has
//	go run ./tests/chaos -measure 50   how long a sender waits when a receiver dies
//	go run ./tests/chaos -soak 1000s -cpus 2
//	                                   whether any member is suspected under load
//	go run ./tests/chaos -volumes -rows -runs 200
//	                                   the same for replicated volumes; so -volumes -seed, -row, -liar, -measure
//
// Package plan generates what happens, package history checks the result, and command app is the
// application. It needs root and Linux.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/tests/chaos/history"
	"github.com/mcrdma/mcrdma/tests/chaos/plan"
	"github.com/mcrdma/mcrdma/tests/chaos/volume"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

func main() {
	seed := flag.Uint64("seed", 1, "of the run, or the first of several")
	runs := flag.Int("runs", 1, "how many")
	var how manner
	flag.BoolVar(&how.liar, "liar", false, "the senders' switches acknowledge what no receiver has")
	flag.BoolVar(&how.fastPath, "fastpath", false, "the kernel processes what is hot of the switches' packets")
	var m measurements
	flag.IntVar(&m.kills, "measure", 0, "measure so many deaths of a receiver, each way")
	flag.DurationVar(&m.soak, "soak", 0, "load for so long, with the fast profile")
	flag.IntVar(&m.cpus, "cpus", 0, "for -soak: on so many processors; 0: all")
	keep := flag.String("keep", filepath.Join("out", "chaos"), "directory for logs and journals of runs that fail")
	flag.BoolVar(&keepAll, "keep-all", false, "keep also what is left of runs that do not fail")
	row := flag.Int("row", 0, "only the run of that row of the plan's, from 1 on")
	rows := flag.Bool("rows", false, "the runs of all rows as well")
	volumes := flag.Bool("volumes", false, "replicated volumes instead of groups")
	flag.Parse()
	last := len(plan.Rows())
	if *volumes {
		last = len(volume.Rows())
	}
	if *row > last {
		fmt.Fprintf(os.Stderr, "chaos: there are %d rows\n", last)
		os.Exit(2)
	}
	if !*rows {
		last = 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	list := numbers(*seed, *runs, *row, last)
	var err error
	if *volumes {
		err = doVolumes(ctx, list, how, m.kills, *keep)
	} else {
		err = do(ctx, list, how, m, *keep)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		stop()
		os.Exit(1) //nolint:gocritic // nothing is deferred but stop
	}
}

var keepAll bool

// measurements are run instead of plans.
type measurements struct {
	kills int
	soak  time.Duration
	cpus  int
}

// numbers are the numbers of the runs for plan.Of; so many rows come first.
func numbers(seed uint64, runs, row, rows int) (list []uint64) {
	if row > 0 {
		return []uint64{plan.FirstRow + uint64(row) - 1} //nolint:gosec // positive
	}
	for i := range rows {
		list = append(list, plan.FirstRow+uint64(i)) //nolint:gosec // positive
	}
	for i := range runs {
		list = append(list, seed+uint64(i)) //nolint:gosec // not negative
	}
	return list
}

func do(ctx context.Context, numbers []uint64, how manner, m measurements, keep string) error {
	base, err := os.MkdirTemp("", "mcrdma-chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	programs, err := buildGroups(filepath.Join(base, "bin"), m == measurements{})
	if err != nil {
		return err
	}
	if m.kills > 0 {
		return measure(ctx, programs, base, m.kills)
	}
	if m.soak > 0 {
		return soak(ctx, programs, base, m.soak, m.cpus)
	}
	var plans []*plan.Plan
	for _, n := range numbers {
		plans = append(plans, plan.Of(n))
	}
	var sum history.Summary
	return each(plans, func(p *plan.Plan) (string, bool, error) {
		res, err := one(ctx, programs, base, p, how, keep)
		if err != nil {
			return "", false, err
		}
		for _, g := range res.Groups {
			x := history.Summarize(g)
			sum.Submitted += x.Submitted
			sum.Promised += x.Promised
			sum.Bytes += x.Bytes
			sum.Removed = append(sum.Removed, x.Removed...)
		}
		return report(p, res), len(res.Violations) == 0, nil
	}, func() string {
		return fmt.Sprintf("%d operations, of which %d (%d MB) were promised, %d removals", sum.Submitted, sum.Promised, sum.Bytes>>20, len(sum.Removed))
	})
}

// one carries out the plan of a run. If it fails, it keeps the files of its processes.
func one(ctx context.Context, programs lab.Programs, base string, p *plan.Plan, how manner, keep string) (*result, error) {
	dir, err := os.MkdirTemp(base, "run-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	res, err := carryOut(ctx, programs, dir, p, how)
	if err != nil || len(res.Violations) == 0 && !keepAll || keep == "" {
		return res, err
	}
	keep = filepath.Join(keep, strings.ReplaceAll(p.Name(), " ", "-"))
	_ = os.RemoveAll(keep)
	if err := os.MkdirAll(keep, 0o750); err != nil {
		return res, err
	}
	if err := os.WriteFile(filepath.Join(keep, "logs"), []byte(res.Logs), 0o600); err != nil {
		return res, err
	}
	for _, pattern := range []string{"*.sender", "*.member"} {
		files, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil {
				_ = os.WriteFile(filepath.Join(keep, filepath.Base(f)), b, 0o600)
			}
		}
	}
	return res, nil
}

// report is the text about a run.
func report(p *plan.Plan, res *result) string {
	var b strings.Builder
	b.WriteString(p.String())
	for _, g := range res.Groups {
		s := history.Summarize(g)
		fmt.Fprintf(&b, "  %s: %d operations, %d promised (%d kB), the longest took %d ms; %s", g.Name, s.Submitted, s.Promised, s.Bytes>>10, s.Longest/1000, s.End)
		for _, x := range s.Removed {
			fmt.Fprintf(&b, "; without %s", x)
		}
		for _, x := range s.Added {
			fmt.Fprintf(&b, "; with %s", x)
		}
		b.WriteByte('\n')
	}
	b.WriteString(copiesText(res.Copies, res.InKernel))
	if n := p.Kills(); n > 0 {
		fmt.Fprintf(&b, "  %d of %d kills at writes came to be\n", res.Struck, n)
	}
	return b.String() + verdict(res.Violations, res.Took)
}
