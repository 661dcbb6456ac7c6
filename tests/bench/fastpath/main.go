// Command fastpath measures the cost of the switch's packets in the kernel (switchctl softswitch
// --fastpath) and in the switch itself. A program makes frames in the kernel
// (BPF_F_TEST_XDP_LIVE_FRAMES), and writes each again. They pass a veth to the switch, which runs
// in its own process with the whole program of p4src; XDP programs at the far ends of other veths
// count and drop them.
//
//	go run ./tests/bench/fastpath [-rounds 5] [-time 500ms] [-size 1100] [-sources 2] [-only versus|kinds|groups]
//
// Both take turns; the output has medians. The switch itself gets no more frames than its ports
// hold, because only a window of frames is in flight. That does not keep it busy, because each call
// that makes frames takes the kernel about 20 ms. So the kernel's rate is compared with the highest
// rate that the switch's processor time would allow on all processors. Processor time is that of
// every part of a packet's way: the source, the kernel, the switch, and the sink.
//
// bmv2 is also measured if its simple_switch_grpc is installed: only its own processor time.
//
// It makes its own network namespace, which needs root and ends with it.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/report"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		if err := serve(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "fastpath: switch:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fastpath:", err)
		os.Exit(1)
	}
}

func run() error {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "how often each runs; medians are shown")
	flag.DurationVar(&o.span, "time", 500*time.Millisecond, "how long each run takes")
	flag.IntVar(&o.size, "size", 1100, "bytes of a frame with data")
	flag.IntVar(&o.window, "window", 1024, "frames under way to the switch itself")
	flag.IntVar(&o.sources, "sources", min(2, runtime.NumCPU()), "threads that make frames, each at a port of its own")
	only := flag.String("only", "", "one table: versus, kinds or groups")
	flag.Parse()
	if o.rounds < 1 || o.size < 100 || o.size > 1514 || o.window < 64 || o.sources < 1 || o.sources > maxSources || flag.NArg() > 0 {
		flag.Usage()
		return fmt.Errorf("sizes are 100 to 1514 bytes, sources 1 to %d, and there are no arguments but flags", maxSources)
	}
	f, err := newField(o)
	if err != nil {
		return err
	}
	defer f.close()
	fmt.Printf("frames of %d bytes; %d processors, Linux %s, load %s (other load distorts all figures)\n", o.size, runtime.NumCPU(), report.Kernel(), report.Load())
	tables := []struct {
		name string
		make func() error
	}{{"versus", f.versus}, {"kinds", f.kinds}, {"groups", f.scale}}
	var errs []error
	for _, t := range tables {
		if *only == "" || *only == t.name {
			errs = append(errs, t.make())
		}
	}
	return errors.Join(errs...)
}

// versus compares the kernel with the switch itself, and with bmv2 if it is installed.
func (f *field) versus() error {
	fmt.Printf("\nmedians of %d rounds\n", f.o.rounds)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "packets\tby\tkpps\tmin\tmax\tCPU µs/packet\tlost\tCPU ratio\t")
	var goals []string
	names, bys := []string{"switch", "kernel"}, []string{bySwitch, byKernel}
	if launcher, err := lab.FindBMv2(); err == nil {
		names, bys = append(names, "bmv2"), append(bys, launcher)
	} else {
		fmt.Println("SKIP bmv2:", err)
	}
	for _, k := range []kind{unicast, copies} {
		rounds := make([][]result, len(bys))
		for range f.o.rounds {
			for i, by := range bys {
				r, err := f.measure(k, by, 1, false)
				if err != nil {
					return err
				}
				rounds[i] = append(rounds[i], r)
			}
		}
		base, kernel := summarize(rounds[0]), summarize(rounds[1])
		for i, name := range names {
			s := summarize(rounds[i])
			fmt.Fprintf(w, "%s\t%s\t%.0f\t%.0f\t%.0f\t%.2f\t%.1f %%\t%.2f\t\n", k.name, name, s.rate/1e3, s.lo/1e3, s.hi/1e3, s.cpu/1e3, 100*s.lost, base.cpu/s.cpu)
			if i == 1 {
				continue
			}
			of, goal := "the switch itself", k.goal
			if i == 2 {
				of, goal = "bmv2", bmv2Goal
			}
			most := float64(runtime.NumCPU()) * 1e9 / s.cpu
			goals = append(goals, report.Verdict(k.name+", rate, of the most that "+of+" could reach", kernel.rate/most, goal, "x", true),
				report.Verdict(k.name+", packets for the processor time of "+of, s.cpu/kernel.cpu, goal, "x", true))
		}
	}
	err := w.Flush()
	fmt.Println(strings.Join(goals, "\n"))
	return err
}

// kinds measures the cost of each kind of packet in the kernel.
func (f *field) kinds() error {
	fmt.Printf("\nin the kernel, by kind; ns in the programs include the clock that they are measured by, and those of copies are of each copy\n")
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "kind\tCPU ns/packet\tin the program\tfor each copy\t")
	for _, k := range allKinds {
		var rounds []result
		for range f.o.rounds {
			r, err := f.measure(k, byKernel, 1, true)
			if err != nil {
				return err
			}
			rounds = append(rounds, r)
		}
		s := summarize(rounds)
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t\n", k.name, s.cpu, s.in, s.out)
	}
	return w.Flush()
}

// scale measures the cost of a copied packet by number of groups, with each packet of a random
// group. The time in programs is measured in separate runs, because measuring it takes time too.
func (f *field) scale() error {
	fmt.Printf("\n%s, by how many groups there are, each packet of any\n", copies.name)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "groups\tCPU ns/packet\tratio\tin the program\tfor each copy\t")
	counts := []int{1, 16, 256, 4096, 16383} // 16,384 slots for merging, and group 0 is not used
	rounds := make([][2][]result, len(counts))
	for range f.o.rounds {
		for i, n := range counts {
			for j, inside := range []bool{false, true} {
				r, err := f.measure(copies, byKernel, n, inside)
				if err != nil {
					return err
				}
				rounds[i][j] = append(rounds[i][j], r)
			}
		}
	}
	one, last := summarize(rounds[0][0]), summary{}
	for i, n := range counts {
		by := summarize(rounds[i][1])
		last = summarize(rounds[i][0])
		fmt.Fprintf(w, "%d\t%.0f\t%.2f\t%.0f\t%.0f\t\n", n, last.cpu, last.cpu/one.cpu, by.in, by.out)
	}
	err := w.Flush()
	fmt.Println(report.Verdict("processor time with 16,383 groups, of that with one", last.cpu/one.cpu, groupsGoal, "x", false))
	return err
}

// A summary holds medians.
type summary struct {
	result
	lo, hi float64
}

func summarize(rs []result) (s summary) {
	median := func(f func(result) float64) float64 { return report.MedianOf(rs, f) }
	s.rate, s.cpu = median(func(r result) float64 { return r.rate }), median(func(r result) float64 { return r.cpu })
	s.lost, s.in, s.out = median(func(r result) float64 { return r.lost }), median(func(r result) float64 { return r.in }), median(func(r result) float64 { return r.out })
	byRate := func(a, b result) int { return cmp.Compare(a.rate, b.rate) }
	s.lo, s.hi = slices.MinFunc(rs, byRate).rate, slices.MaxFunc(rs, byRate).rate
	return s
}
