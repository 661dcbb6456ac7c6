// Command rdmc measures how long a message takes from the root of a group to all
// receivers: by package rdmcfallback over TCP, with its defaults and with several algorithms, and over
// softroce devices, beside OpenMPI's MPI_Bcast over TCP, and beside one plain TCP
// connection, and RDMA WRITEs, to one receiver. Every member is a process of its own. There are two paths: loopback,
// where the processors' copying is the limit, and network namespaces joined by a
// bridge, in which every host's link is limited, both ways, by a token bucket
// (that takes root; they are removed in the end). Contestants run in turns, in
// fresh processes, and never two at once; medians are shown. The time is from the
// root's call to the last receiver's completion, by the machine's clock.
//
// OpenMPI takes part if mpicc and mpirun are installed (Debian: openmpi-bin,
// libopenmpi-dev). It polls without sleeping, so other load distorts its figures
// more than the others'.
//
//	go run ./tests/bench/rdmc [-rounds 5] [-each 5] [-size 67108864] [-receivers 3,7] [-path loopback|limited]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
	"github.com/mcrdma/mcrdma/tests/bench/report"
)

func main() {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "child":
		err = serve()
	case len(os.Args) > 1 && os.Args[1] == "agent":
		err = agent(os.Args[2:])
	default:
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A contestant sends a message from the first host of a path to the others, a number of times, and
// returns the times.
type contestant struct {
	name  string
	plain string // the contestant that sends to one receiver by the same means
	run   contest
}

type contest func(ctx context.Context, p *path, hosts, size, times int) ([]time.Duration, error)

const (
	plainTCP  = "plain"
	plainRDMA = "softroce-write"
	openMPI   = "openmpi"
)

func contestants(blockSize, rdmaBlockSize int) []contestant {
	cs := []contestant{{plainTCP, plainTCP, plain}, {"default", plainTCP, group(nil, schedule.BinomialPipeline, 0)}}
	for _, a := range []schedule.Algorithm{schedule.BinomialPipeline, schedule.Chain, schedule.Sequential} {
		cs = append(cs, contestant{a.String(), plainTCP, group(nil, a, blockSize)})
	}
	return append(cs, contestant{plainRDMA, plainRDMA, write},
		contestant{"softroce-pipeline", plainRDMA, group(softroce, schedule.BinomialPipeline, rdmaBlockSize)})
}

func run() error {
	rounds := flag.Int("rounds", 5, "how often each contestant runs; medians are shown")
	each := flag.Int("each", 5, "messages in each run on loopback")
	eachLimited := flag.Int("each-limited", 1, "messages in each run on limited links")
	size := flag.Int("size", 64<<20, "bytes of a message")
	blockSize := flag.Int("block", tcp.BlockSize, "bytes of a block over TCP")
	rdmaBlockSize := flag.Int("rdma-block", 1<<20, "bytes of a block over softroce")
	receivers := flag.String("receivers", "3,7", "numbers of receivers")
	only := flag.String("path", "", "loopback or limited; both if empty")
	names := flag.String("only", "", "names of contestants, separated by commas; all if empty")
	rate := flag.Uint64("rate", 1000, "Mb/s of a limited link")
	cc := flag.String("cc", "cubic", "congestion control on limited links; on loopback it is the system's")
	flag.Parse()
	counts, err := numbers(*receivers)
	if err != nil {
		return err
	}

	// No signal and no closed standard output may end this process before the namespaces are
	// removed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	removeStale()
	cs := contestants(*blockSize, *rdmaBlockSize)
	bcast, remove, err := buildMPI(ctx)
	if err != nil {
		fmt.Println("OpenMPI is left out:", err)
	} else {
		defer remove()
		cs = append(cs, contestant{openMPI, plainTCP, bcast})
	}
	if *names != "" {
		wanted := strings.Split(*names, ",")
		cs = slices.DeleteFunc(cs, func(c contestant) bool { return !slices.Contains(wanted, c.name) })
	}
	fmt.Printf("%d bytes; %d processors, Linux %s, load %s at the start (other load distorts all figures)\n",
		*size, runtime.NumCPU(), report.Kernel(), report.Load())
	fmt.Printf("congestion control: %s on loopback, %s on limited links\n", report.FirstWord(ccFile), *cc)
	fmt.Println("plain is one TCP connection to one receiver, softroce-write RDMA WRITEs to one; the ratios are of medians, to that of the",
		"same means, and to OpenMPI")
	fmt.Printf(heading, "path", "receivers", "contestant", "ms", "fastest", "slowest", "/plain", "/openmpi")
	if *only != "limited" {
		if err := compare(ctx, &path{name: "loopback"}, cs, counts, *size, *rounds, *each); err != nil {
			return err
		}
	}
	if *only != "loopback" {
		p, remove, err := limited(slices.Max(counts)+1, *rate, *cc)
		if err != nil {
			fmt.Println("limited links are left out:", err)
			return nil
		}
		defer remove()
		return compare(ctx, p, cs, counts, *size, *rounds, *eachLimited)
	}
	return nil
}

// compare runs the contestants in turns, and prints medians.
func compare(ctx context.Context, p *path, cs []contestant, counts []int, size, rounds, each int) error {
	for _, n := range counts {
		took := map[string][]float64{}
		for range rounds {
			for _, c := range cs {
				ds, err := c.run(ctx, p, n+1, size, each)
				if ctx.Err() != nil {
					return errors.New("interrupted")
				}
				if err != nil {
					return fmt.Errorf("%s, %d receivers, %s: %w", p.name, n, c.name, err)
				}
				for _, d := range ds {
					took[c.name] = append(took[c.name], d.Seconds()*1e3)
				}
			}
		}
		mpi := report.Median(took[openMPI])
		for _, c := range cs {
			t := took[c.name]
			fmt.Printf(row, p.name, n, c.name, report.Median(t), slices.Min(t), slices.Max(t), ratio(t, report.Median(took[c.plain])), ratio(t, mpi))
		}
	}
	return nil
}

const (
	heading = "%10s %10s %18s %9s %9s %9s %7s %9s\n"
	row     = "%10s %10d %18s %9.1f %9.1f %9.1f %7s %9s\n"
)

func ratio(v []float64, to float64) string {
	if to == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", report.Median(v)/to)
}

func numbers(s string) (n []int, err error) {
	for f := range strings.SplitSeq(s, ",") {
		x, err := strconv.Atoi(f)
		if err != nil || x < 1 || x > 100 {
			return nil, errors.New("-receivers takes numbers from 1 to 100, separated by commas")
		}
		n = append(n, x)
	}
	return n, nil
}
