// Command softswitch measures the embedded switch end to end: IPv4 unicast frames from one veth
// pair to another, through a switch in its own process that routes them (a longest-prefix match,
// new MAC addresses, TTL and checksum), against a plain packet-socket forwarder in its place. The
// two contestants run in turns.
//
// Throughput is without loss: the sender sends as long as fewer frames than the window are in
// flight, so that only a contestant that loses frames stalls it, which is counted. Latency is with
// one frame in flight. At the end the switch gets frames at a fixed rate, whatever its output.
//
// Before that it measures the cost of copying in each mode of the ICRC, in its own process; with
// -copies only that.
//
//	go run ./tests/bench/softswitch [-rounds 9] [-time 1s] [-size 1100] [-rate 150000] [-min 150000] [-copies] [-ratio 1.5]
//
// It makes its own network namespace, which needs root and ends with it. With -min it fails if the
// switch's median is lower, or if frames were lost.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/report"
)

// Namespaces belong to threads: the main thread gets one, and children inherit it.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) > 2 && os.Args[1] == "child" {
		serve(os.Args[2], os.Args[3])
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	rounds, size, window, rate, least int
	span                              time.Duration
	profile                           string
	only                              bool
	ratio                             float64
}

func run() error {
	var o options
	flag.IntVar(&o.rounds, "rounds", 9, "how often each contestant runs; medians are shown")
	flag.DurationVar(&o.span, "time", time.Second, "how long each run takes")
	flag.IntVar(&o.size, "size", 1100, "bytes of a frame")
	flag.IntVar(&o.window, "window", 1024, "frames under way")
	flag.IntVar(&o.rate, "rate", 150000, "frames a second of the last run, which does not wait for any; 0: no such run")
	flag.IntVar(&o.least, "min", 0, "frames a second that the switch must reach")
	flag.BoolVar(&o.only, "copies", false, "measure copying only, which takes no root")
	flag.Float64Var(&o.ratio, "ratio", 0, "how many times as many packets copying with icrc: neutral must make as with recompute")
	flag.StringVar(&o.profile, "cpuprofile", "", "file for a CPU profile of the switch's process in its last run")
	flag.Parse()
	if o.size < 34 || o.size > 1514 || o.rounds < 1 || o.window < 1 || flag.NArg() > 0 {
		flag.Usage()
		return errors.New("sizes are 34 to 1514 bytes, rounds and window at least 1, and there are no arguments but flags")
	}
	if err := measureCopies(o); err != nil || o.only {
		return err
	}
	if err := makeVeths(); err != nil {
		return err
	}
	t, err := newTraffic(o.size)
	if err != nil {
		return err
	}
	defer t.close()
	fmt.Printf("IPv4 unicast, frames of %d bytes, %d under way; %d processors, Linux %s, load %s at the start (other load distorts all figures)\n",
		o.size, o.window, runtime.NumCPU(), report.Kernel(), report.Load())

	results := map[string][]result{}
	for i := range o.rounds {
		for _, role := range []string{"forward", "switch"} {
			profile := ""
			if role == "switch" && i == o.rounds-1 {
				profile = o.profile
			}
			r, err := t.measure(role, o, profile)
			if err != nil {
				return fmt.Errorf("%s: %w", role, err)
			}
			results[role] = append(results[role], r)
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "contestant\tkpps\tratio\tmin kpps\tmax kpps\tCPU µs/frame\tlost\tlatency µs\tratio\t")
	base, sw := summarise(results["forward"]), summarise(results["switch"])
	for _, s := range []struct {
		name string
		summary
	}{{"packet sockets", base}, {"softswitch", sw}} {
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.0f\t%.0f\t%.2f\t%d\t%.1f\t%.2f\t\n", s.name, s.pps/1e3, s.pps/base.pps, s.lo/1e3, s.hi/1e3,
			s.cpu, s.lost, s.latency, s.latency/base.latency)
	}
	w.Flush()
	lost := sw.lost
	if o.rate > 0 {
		sent, n, drops, err := t.offer(o)
		if err != nil {
			return err
		}
		fmt.Printf("at %d frames a second for %v: %d of %d lost; dropped by the switch: %s\n", o.rate, 3*o.span, n, sent, drops)
		lost += n
	}
	switch {
	case o.least > 0 && sw.pps < float64(o.least):
		return fmt.Errorf("%.0f frames a second are fewer than %d", sw.pps, o.least)
	case o.least > 0 && lost > 0:
		return fmt.Errorf("%d frames were lost", lost)
	}
	return nil
}

func measureCopies(o options) error {
	ratio, err := copies(os.Stdout, o.rounds, o.span/4, 1024)
	if err == nil && ratio < o.ratio {
		err = fmt.Errorf("mode neutral makes %.2f times as many packets as recompute, fewer than %.2f", ratio, o.ratio)
	}
	return err
}

// A result is one run of a contestant.
type result struct {
	pps, cpu, latency float64 // frames per second, µs per frame, µs
	lost              int
}

// A summary holds medians, and the sum of losses.
type summary struct {
	pps, lo, hi, cpu, latency float64
	lost                      int
}

func summarise(rs []result) (s summary) {
	byRate := func(a, b result) int { return cmp.Compare(a.pps, b.pps) }
	s.lo, s.hi = slices.MinFunc(rs, byRate).pps, slices.MaxFunc(rs, byRate).pps
	s.pps = report.MedianOf(rs, func(r result) float64 { return r.pps })
	s.cpu = report.MedianOf(rs, func(r result) float64 { return r.cpu })
	s.latency = report.MedianOf(rs, func(r result) float64 { return r.latency })
	for _, r := range rs {
		s.lost += r.lost
	}
	return s
}
