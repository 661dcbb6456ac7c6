package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/report"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

const (
	warmUp     = 30
	createGoal = 10 * time.Millisecond // p99, with the state in memory; on a disk its own p99 more
)

// create creates groups, one after another, and prints the time of each phase.
func create(ctx context.Context, l *lab.Lab, o options) error {
	h1 := l.Host("h1")
	var names []string // phases, in order
	took := map[string][]time.Duration{}
	var all []time.Duration
	for i := range warmUp + o.groups {
		info, err := lab.Ask[orders.GroupInfo](ctx, h1.Member, orders.Create, orders.CreateArgs{Name: "g", Service: service,
			Receivers: receivers(l), Mode: "require", Regions: []uint64{1 << 20}})
		if err != nil {
			return fmt.Errorf("group %d: %w", i, err)
		}
		if err := h1.Member.Do(ctx, orders.Close, orders.Name{Name: "g"}, nil); err != nil {
			return fmt.Errorf("group %d: %w", i, err)
		}
		if i < warmUp {
			continue
		}
		all = append(all, info.Took)
		for _, s := range info.Phases {
			if !slices.Contains(names, s.Name) {
				names = append(names, s.Name)
			}
			took[s.Name] = append(took[s.Name], s.Took)
		}
	}
	fmt.Printf("\nmaking a group of 3 receivers over 3 switches, mutual TLS, %d groups after %d to warm up, load %s:\n", o.groups, warmUp, report.Load())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "phase\tn\tmean ms\tp50\tp99\tmax\t")
	for _, n := range names {
		row(w, n, took[n])
	}
	row(w, "call to ready", all)
	if err := w.Flush(); err != nil {
		return err
	}
	goal := createGoal
	if inMemory, err := report.InMemory(o.dir); err != nil {
		return err
	} else if !inMemory {
		disk, err := report.Fdatasyncs(o.dir, len(l.Switches), o.span)
		if err != nil {
			return err
		}
		own := percentile(disk, 99)
		fmt.Printf("the disk's own p99, %d files at once: %.2f ms\n", len(l.Switches), float64(own)/1e6)
		goal += own
	}
	fmt.Println(report.Verdict("p99 of a group", float64(percentile(all, 99))/1e6, float64(goal)/1e6, " ms", false))
	return l.CheckLeftovers(ctx, 5*time.Second)
}

func row(w *tabwriter.Writer, name string, d []time.Duration) {
	var sum time.Duration
	for _, x := range d {
		sum += x
	}
	ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
	fmt.Fprintf(w, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t\n", name, len(d), ms(sum)/float64(len(d)), ms(percentile(d, 50)), ms(percentile(d, 99)), ms(percentile(d, 100)))
}
