// Command busy measures groups next to busy processes: whether live receivers are taken for dead
// and working links for broken, and the groups' throughput.
//
// N groups have one sender and three receivers, with one write of 64 KiB in flight in each, in a
// lab of package lab: three switches, their agents and four daemons in this process, and a process
// for each host's application. All settings are those of the users' programs, but daemons and agents
// allow a host 512 groups. Busy processes only compute; they begin when the groups exist.
//
//	go run ./tests/bench/busy [-groups 1,16,100,400] [-busy 0,16] [-time 60s] [-json] [-log FILE] [-profile FILE]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

const (
	service    = "busy"
	socketEnv  = "MCRDMA_SOCKET"
	writeSize  = 64 << 10
	mostGroups = 512
)

var hosts = []string{"h1", "h2", "h3", "h4"}

type options struct {
	groups, busy []int
	span         time.Duration
	json         bool
	log          *slog.Logger
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		err = roles[os.Args[1]](ctx, os.Args[2:])
	} else {
		err = measure(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "busy:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context) (err error) {
	var o options
	groups := flag.String("groups", "1,16,100,400", "numbers of groups")
	busy := flag.String("busy", "0,16", "numbers of busy processes")
	flag.DurationVar(&o.span, "time", time.Minute, "how long each run takes")
	flag.BoolVar(&o.json, "json", false, "print JSON in place of a table")
	logTo := flag.String("log", "", "file for what agents and daemons log")
	profile := flag.String("profile", "", "file for a processor profile of switches, agents and daemons")
	flag.Parse()
	if o.groups, err = numbers(*groups); err != nil {
		return fmt.Errorf("-groups: %w", err)
	}
	if o.busy, err = numbers(*busy); err != nil {
		return fmt.Errorf("-busy: %w", err)
	}
	o.log = slog.New(slog.DiscardHandler)
	if *logTo != "" {
		f, err := os.Create(*logTo)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		o.log = slog.New(slog.NewTextHandler(f, nil))
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	return all(ctx, o)
}

func numbers(text string) (list []int, err error) {
	for f := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < 0 || n > mostGroups {
			return nil, fmt.Errorf("%q: want 0 to %d", f, mostGroups)
		}
		list = append(list, n)
	}
	return list, nil
}

// all does all runs, each in its own lab.
func all(ctx context.Context, o options) error {
	var results []*result
	var failed error
	for _, n := range o.groups {
		for _, b := range o.busy {
			r, err := run(ctx, o, n, b)
			if err != nil {
				failed = fmt.Errorf("%d groups beside %d busy processes: %w", n, b, err)
				break
			}
			fmt.Fprintf(os.Stderr, "%+v\n", *r)
			results = append(results, r)
		}
	}
	if o.json {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return errors.Join(failed, e.Encode(results))
	}
	fmt.Printf("%d processors, runs of %v\n", runtime.NumCPU(), o.span)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "groups\tbusy\tload\tremoved\tfailed\tre-formed\tlinks down\tdifferent\tGb/s\tour cpu s\tMbit/cpu s\tlongest write\tlate p99\tlate max\t")
	for _, r := range results {
		fmt.Fprintf(w, "%d\t%d\t%.1f\t%d\t%d\t%d\t%d\t%d\t%.4f\t%.1f\t%.2f\t%v\t%v\t%v\t\n", r.Groups, r.Busy, r.Load, r.Removed, r.Failed, r.Reformed, r.LinksDown,
			r.Different, r.Goodput, r.CPU, r.PerCPU, r.Longest.Round(time.Millisecond), r.LateP99.Round(time.Millisecond), r.LateMax.Round(time.Millisecond))
	}
	return errors.Join(failed, w.Flush())
}

// A result is the result of one run.
type result struct {
	Groups    int            `json:"groups"`
	Busy      int            `json:"busy"`
	Load      float64        `json:"load"` // of the machine, at the end
	Removed   int            `json:"receivers_removed"`
	Failed    int            `json:"groups_failed"`
	Reformed  int            `json:"groups_reformed"`
	LinksDown int            `json:"links_down"`
	Different int            `json:"replicas_different"`
	Goodput   float64        `json:"gbit_per_second"`
	CPU       float64        `json:"our_cpu_seconds"`
	PerCPU    float64        `json:"mbit_per_cpu_second"`
	Longest   time.Duration  `json:"longest_write_ns"`
	LateP99   time.Duration  `json:"late_p99_ns"` // sleeps of the process with switches, agents and daemons
	LateMax   time.Duration  `json:"late_max_ns"`
	Why       map[string]int `json:"why"` // reasons from daemons
}
