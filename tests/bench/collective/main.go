// Command collective measures collective operations in a lab of real programs: hosts in network
// namespaces, with links of limited rate in each direction, behind an embedded switch, and "mcbench
// coll" on each. OpenMPI and MPICH, if installed, take turns with it on the same hosts and links,
// by TCP alone. The output has medians.
//
//   - rates: all operations, with links as fast both ways, and with uplinks half as fast;
//   - small: small operations on links without a limit;
//   - degrees: allreduce of small messages with each degree of the tree, beside the one that is chosen;
//   - server: a step of a parameter server with six workers, by multicast and by fan-out.
//
// It needs root and the kernel's tbf, makes everything itself, and leaves nothing behind. Run it on
// an idle machine:
//
//	go run ./tests/bench/collective [-only rates|small|degrees|server] [-ranks 8] [-rates 50/50,25/50] [-sizes 1M,4M] [-rounds 3] [-n 3]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/mcrdma/mcrdma/tests/bench/report"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

type options struct {
	only, rates, sizes, operations, mpi string
	ranks, rounds, count                int
}

func main() {
	var o options
	flag.StringVar(&o.only, "only", "", "rates, small, degrees or server; all if empty")
	flag.StringVar(&o.rates, "rates", "50/50,25/50", "of the hosts' links, Mb/s up and down, with commas between")
	flag.StringVar(&o.sizes, "sizes", "1M,4M", "bytes at these rates, with commas between")
	flag.StringVar(&o.operations, "operations", "allreduce,broadcast,allgather,reduce,reducescatter", "at these rates, with commas between")
	flag.StringVar(&o.mpi, "mpi", "openmpi,mpich", "implementations beside, with commas between")
	flag.IntVar(&o.ranks, "ranks", 8, "ranks, up to 8")
	flag.IntVar(&o.rounds, "rounds", 3, "how often each contestant runs")
	flag.IntVar(&o.count, "n", 3, "operations in each run")
	flag.Parse()
	lab.Main("collective", "collective operations", func(ctx context.Context, dir string) error { return run(ctx, dir, &o) })
}

func run(ctx context.Context, dir string, o *options) (err error) {
	if o.ranks < 2 || o.ranks > 8 {
		return fmt.Errorf("-ranks %d: want 2 to 8", o.ranks)
	}
	fmt.Printf("%d processors, load %s at the start (other load distorts all figures)\n", runtime.NumCPU(), report.Load())
	r, err := newRack(ctx, dir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.lab.Close()) }()
	parts := []struct {
		name string
		run  func(context.Context) error
	}{{"rates", r.rates}, {"small", r.small}, {"degrees", r.degrees}, {"server", r.server}}
	for _, p := range parts {
		if o.only != "" && !slices.Contains(strings.Split(o.only, ","), p.name) {
			continue
		}
		if err := p.run(ctx); err != nil {
			return fmt.Errorf("%s: %w\n%s", p.name, err, r.lab.Logs())
		}
	}
	return nil
}

// rates: all operations, on links of limited rates.
func (r *rack) rates(ctx context.Context) error {
	for text := range strings.SplitSeq(r.o.rates, ",") {
		var up, down uint64
		if n, err := fmt.Sscanf(text, "%d/%d", &up, &down); n != 2 || up == 0 || down == 0 {
			return fmt.Errorf("-rates %q: want Mb/s up and down, such as 50/50,25/50: %w", text, err)
		}
		if err := r.limit(up*1e6, down*1e6); err != nil {
			return err
		}
		fmt.Printf("\nLinks of %d Mb/s up and %d down, load %s\n", up, down, report.Load())
		got, err := r.coll(ctx, "h", r.o.ranks, true, "--operations", r.o.operations, "-s", r.o.sizes, "--mpi", r.o.mpi, "--timeout", "2m")
		if err != nil {
			return err
		}
		got.table()
		for _, x := range got {
			if x.By != ours {
				continue
			}
			what := fmt.Sprintf("%s of %d bytes: ", x.Operation, x.Size)
			n := float64(r.o.ranks)
			switch x.Operation {
			case "allreduce":
				goal := 0.95
				if 2*up <= down {
					goal = 1.5
				}
				fmt.Println(report.Verdict(what+"time of MPI's fastest by ours", x.ByMPI, goal, "", true))
				fmt.Println(report.Verdict(what+"sent per rank, x size", x.Uplink, 1.03, "", false))
			case "broadcast":
				fmt.Println(report.Verdict(what+"sent by the root, x size", x.Uplink, 1.03, "", false))
			case "allgather":
				fmt.Println(report.Verdict(what+"sent per rank, x its part", x.Uplink*n, 1.03, "", false))
			}
		}
	}
	return nil
}

// small: operations of a few messages.
func (r *rack) small(ctx context.Context) error {
	if err := r.limit(0, 0); err != nil {
		return err
	}
	fmt.Printf("\nSmall operations, links without a limit, load %s\n", report.Load())
	got, err := r.coll(ctx, "s", r.o.ranks, true, "--operations", "allreduce,barrier", "-s", "8,1K,4K", "--mpi", r.o.mpi, "-n", "100")
	if err != nil {
		return err
	}
	got.table()
	for _, x := range got {
		if x.By == ours {
			fmt.Println(report.Verdict(fmt.Sprintf("%s of %d bytes: our time by that of MPI's fastest", x.Operation, x.Size), 1/x.ByMPI, 1, "", false))
		}
	}
	return nil
}

// degrees: the chosen degree, and all others.
func (r *rack) degrees(ctx context.Context) error {
	if err := r.limit(0, 0); err != nil {
		return err
	}
	fmt.Printf("\nDegrees of the tree, allreduce, median of %d rounds, load %s\n", r.o.rounds, report.Load())
	const chosen = 0
	degrees := []int{chosen, 1, 3, 7}
	took := map[int]map[int][]float64{} // by size and degree
	for round := range r.o.rounds {
		for _, k := range degrees {
			got, err := r.coll(ctx, fmt.Sprintf("d%d-%d", round, k), r.o.ranks, false, "--operations", "allreduce", "-s", "8,512,4K", "-n", "200", "--rounds", "1", "--degree", fmt.Sprint(k))
			if err != nil {
				return err
			}
			for _, x := range got {
				if took[x.Size] == nil {
					took[x.Size] = map[int][]float64{}
				}
				took[x.Size][k] = append(took[x.Size][k], x.Time)
			}
		}
	}
	for _, size := range []int{8, 512, 4096} {
		best := 0
		for _, k := range degrees[1:] {
			fmt.Printf("%d bytes, degree %d: %.0f µs\n", size, k, report.Median(took[size][k]))
			if best == 0 || report.Median(took[size][k]) < report.Median(took[size][best]) {
				best = k
			}
		}
		fmt.Println(report.Verdict(fmt.Sprintf("%d bytes: time with the chosen degree by that with the best, which is %d", size, best), report.Median(took[size][chosen])/report.Median(took[size][best]), 1.1, "", false))
	}
	return nil
}

// server: the first host sends 8 MB to six workers, and combines what they send.
func (r *rack) server(ctx context.Context) error {
	const workers = 6
	if r.o.ranks <= workers {
		return fmt.Errorf("it takes %d ranks", workers+1)
	}
	if err := r.limit(50e6, 50e6); err != nil {
		return err
	}
	fmt.Printf("\nA parameter server with %d workers, 8 MB, links of 50 Mb/s, load %s\n", workers, report.Load())
	steps := map[string][]float64{}
	for round := range r.o.rounds {
		for _, way := range []string{"multicast", "fan-out"} {
			got, err := r.coll(ctx, fmt.Sprintf("p%d-%s", round, way), 1+workers, false, "--operations", "broadcast,reduce", "-s", "8000000", "-n", "1", "--warm-up", "0", "--rounds", "1", "--way", way, "--timeout", "2m")
			if err != nil {
				return err
			}
			fmt.Printf("%s: pull %.2f s, push %.2f s\n", way, got[0].Time/1e6, got[1].Time/1e6)
			steps[way] = append(steps[way], got[0].Time+got[1].Time)
		}
	}
	fmt.Println(report.Verdict("a step by fan-out by one by multicast", report.Median(steps["fan-out"])/report.Median(steps["multicast"]), 0.9*2*workers/(workers+1), "", true))
	return nil
}
