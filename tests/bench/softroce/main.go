// Command softroce measures the softroce device against plain UDP with the same batching and
// segmentation offloads: throughput of 1 MB RDMA WRITEs on one queue pair, CPU time and allocations
// on each side, and latency of small messages. Sender and receiver are separate processes, over
// loopback and over a veth pair between two network namespaces, which it makes (with root) and
// removes. The two contestants run in turns, and both poll for up to 100 µs before they sleep.
//
//	go run ./tests/bench/softroce [-rounds 7] [-time 1s] [-rx raw|udp] [-options "gso=off&…"]
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/report"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		serve()
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A path is the way of packets: addresses and network namespaces of both sides.
type path struct {
	name         string
	from, to     string // IPv4 addresses
	fromNS, toNS string // "" is the current one
}

func run() error {
	rounds := flag.Int("rounds", 7, "how often each contestant runs; medians are shown")
	span := flag.Duration("time", time.Second, "how long each run takes")
	rx := flag.String("rx", "", "receive mode of softroce: raw or udp; both if empty")
	options := flag.String("options", "", "further options of the softroce devices")
	cpuprofile := flag.String("cpuprofile", "", "prefix of CPU profiles of softroce's processes")
	only := flag.String("path", "", "loopback or veth; both if empty")
	flag.Parse()

	paths := []path{{name: "loopback", from: "127.0.0.1", to: "127.0.0.2"}}
	veth, remove, err := makeVeth()
	if err != nil {
		fmt.Println("veth is left out:", err)
	} else {
		defer remove()
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
		go func() {
			<-interrupted
			remove()
			os.Exit(1)
		}()
		paths = append(paths, veth)
	}
	modes := []string{"raw", "udp"}
	if *rx != "" {
		modes = []string{*rx}
	}
	fmt.Printf("1 MB WRITEs, path MTU %d; %d processors, Linux %s, load %s at the start (other load distorts all figures)\n",
		pathMTU, runtime.NumCPU(), report.Kernel(), report.Load())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "path\trx\tcontestant\tGb/s\tratio\tCPU s/GB send\tCPU s/GB recv\tallocs/packet\tlost %\tp50 µs\tp99 µs\tratio\t")
	for _, p := range paths {
		if *only != "" && p.name != *only {
			continue
		}
		for _, mode := range modes {
			opt := "rx=" + mode
			if *options != "" {
				opt += "&" + *options
			}
			t := trial{path: p, options: opt, rounds: *rounds, span: *span, profile: *cpuprofile}
			bare, roce, err := t.run()
			if err != nil {
				return fmt.Errorf("%s, rx=%s: %w", p.name, mode, err)
			}
			for _, r := range []struct {
				name string
				m    summary
			}{{"bare UDP", bare}, {"softroce", roce}} {
				fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\t%.2f\t%.2f\t%.2f\t%.3f\t%.1f\t%.1f\t%.1f\t%.2f\t\n", p.name, mode, r.name,
					r.m.gbps, r.m.gbps/bare.gbps, r.m.cpuSend, r.m.cpuRecv, r.m.allocs, 100*r.m.lost,
					r.m.p50, r.m.p99, r.m.p50/bare.p50)
			}
			w.Flush()
		}
	}
	return nil
}

// A trial is the comparison on one path in one mode.
type trial struct {
	path    path
	options string
	rounds  int
	span    time.Duration
	profile string
}

// A summary holds medians.
type summary struct {
	gbps, cpuSend, cpuRecv, allocs, lost, p50, p99 float64
}

func (t trial) run() (bare, roce summary, err error) {
	kinds := []string{"udp", "roce"}
	throughput := map[string][]flowResult{}
	latency := map[string][]latencyResult{}
	for range t.rounds {
		for _, k := range kinds {
			r, err := t.flow(k)
			if err != nil {
				return bare, roce, fmt.Errorf("%s throughput: %w", k, err)
			}
			throughput[k] = append(throughput[k], r)
		}
		for _, k := range kinds {
			r, err := t.latency(k)
			if err != nil {
				return bare, roce, fmt.Errorf("%s latency: %w", k, err)
			}
			latency[k] = append(latency[k], r)
		}
	}
	return summarise(throughput["udp"], latency["udp"]), summarise(throughput["roce"], latency["roce"]), nil
}

// A flowResult is one throughput run.
type flowResult struct {
	send, recv sideResult
	lost       float64 // share of the sent packets
}

// A latencyResult is one latency run.
type latencyResult struct{ p50, p99 time.Duration }

func summarise(fs []flowResult, ls []latencyResult) (s summary) {
	of := func(f func(r flowResult) float64) float64 { return report.MedianOf(fs, f) }
	ofL := func(f func(r latencyResult) time.Duration) float64 {
		return report.MedianOf(ls, func(r latencyResult) float64 { return float64(f(r)) / 1e3 })
	}
	return summary{
		gbps:    of(func(r flowResult) float64 { return float64(r.recv.Bytes) * 8 / r.recv.Seconds / 1e9 }),
		cpuSend: of(func(r flowResult) float64 { return r.send.CPU / (float64(r.recv.Bytes) / 1e9) }),
		cpuRecv: of(func(r flowResult) float64 { return r.recv.CPU / (float64(r.recv.Bytes) / 1e9) }),
		allocs: of(func(r flowResult) float64 {
			return max(float64(r.send.Mallocs)/float64(r.send.Packets), float64(r.recv.Mallocs)/float64(r.recv.Packets))
		}),
		lost: of(func(r flowResult) float64 { return r.lost }),
		p50:  ofL(func(r latencyResult) time.Duration { return r.p50 }),
		p99:  ofL(func(r latencyResult) time.Duration { return r.p99 }),
	}
}
