// Command simulated compares what the simulator says of a fabric with what the same code does in the same fabric on
// loopback: "mcsim compare" and "mcbench compare --lab" on topologies that no other test has. Only ratios between ways are compared: of
// times, a lab's programs take a part that the simulator's hosts do not.
//
//	go run ./tests/bench/simulated [-size 512K] [-writes 12] [-depth 4] [-rounds 2] [-most 0.1]
//
// It needs an idle machine, some minutes, and no privileges. It fails if a ratio differs from the
// lab's by more than -most.
package main

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/mcrdma/mcrdma/tests/bench/report"
)

//go:embed *.yaml
var files embed.FS

// A fabric is a topology and the rates of its links.
type fabric struct {
	name  string
	rates []string
}

var fabrics = []fabric{
	{"leafspine", []string{"--rate=40mbit", "--link-rate=leaf1:spine=30mbit,leaf2:spine=20mbit,leaf3:spine=15mbit"}},
	{"tree", []string{"--rate=50mbit", "--fabric-rate=25mbit"}},
	{"fattree", []string{"--rate=40mbit", "--link-rate=tor1:spine1=20mbit,tor1:spine2=20mbit,tor2:spine1=30mbit,tor2:spine2=30mbit,tor3:spine1=25mbit,tor3:spine2=25mbit"}},
}

// ways are the ways of mcbench, with the simulator's names for what the library does.
var ways = [][2]string{{"multicast", "multicast"}, {"fan-out", "sequential"}, {"chain", "blocks"}, {"rdmc", "rdmc"}}

type options struct {
	size                  string
	writes, depth, rounds int
	most                  float64
}

func main() {
	var o options
	flag.StringVar(&o.size, "size", "512K", "bytes of a write")
	flag.IntVar(&o.writes, "writes", 12, "writes of each way and round")
	flag.IntVar(&o.depth, "depth", 4, "writes under way at a time")
	flag.IntVar(&o.rounds, "rounds", 2, "rounds in which the lab's ways take turns")
	flag.Float64Var(&o.most, "most", 0.1, "how far a ratio of the simulator's may be from the lab's, as a share of it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "simulated:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "simulated")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.CopyFS(dir, files); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "./cmd/mcbench", "./cmd/mcsim")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("building mcbench and mcsim, in the repository's directory: %w", err)
	}
	var missed []string
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "fabric\tway\tlab\tsimulated\tdifference")
	for _, f := range fabrics {
		lab, sim, err := o.both(ctx, dir, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		for _, way := range ways[1:] {
			l, s := lab[way[0]], sim[way[1]]
			off := s/l - 1
			fmt.Fprintf(w, "%s\t%s\t%.3f\t%.3f\t%+.0f %%\n", f.name, way[0], l, s, 100*off)
			if max(off, -off) > o.most {
				missed = append(missed, f.name+"'s "+way[0])
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("throughput as multiples of multicast's, %d rounds of %d writes of %s, %d at a time; load %s\n", o.rounds, o.writes, o.size, o.depth, report.Load())
	if len(missed) > 0 {
		return fmt.Errorf("more than %.0f %% off: %s", 100*o.most, strings.Join(missed, ", "))
	}
	return nil
}

// both has throughputs as multiples of multicast's, by way: the lab's, and the simulator's with
// five seeds.
func (o *options) both(ctx context.Context, dir string, f fabric) (lab, sim map[string]float64, err error) {
	var names, schemes []string
	for _, way := range ways {
		names, schemes = append(names, way[0]), append(schemes, way[1])
	}
	common := append([]string{"compare", "--topology", filepath.Join(dir, f.name+".yaml"), "--size", o.size, "--depth", strconv.Itoa(o.depth), "--quiet", "--json"}, f.rates...)
	call := func(program string, to any, more ...string) error {
		cmd := exec.CommandContext(ctx, filepath.Join(dir, program), append(common, more...)...)
		cmd.Stderr = os.Stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		out, err := cmd.Output()
		return cmp.Or(err, json.Unmarshal(out, to))
	}
	var measured struct {
		Results []struct {
			Way   string
			Ratio float64 `json:"Bandwidth_ratio"`
		}
	}
	if err := call("mcbench", &measured, "--lab", "--ways", strings.Join(names, ","), "--rounds", strconv.Itoa(o.rounds), "--iterations", strconv.Itoa(o.rounds*o.writes),
		"--warm-up", "1", "--timeout", "2m"); err != nil {
		return nil, nil, fmt.Errorf("mcbench: %w", err)
	}
	lab = map[string]float64{}
	for _, r := range measured.Results {
		lab[r.Way] = r.Ratio
	}
	const seeds = 5 // they choose among equal paths
	var simulated []struct {
		Scheme string
		Ratio  float64 `json:"bandwidth_ratio"`
	}
	// In a lab, queue pairs have 16 packets in flight, which wait where switches do not mark yet,
	// and hosts relay blocks of 128 KiB.
	if err := call("mcsim", &simulated, "--schemes", strings.Join(schemes, ","), "--writes", strconv.Itoa(o.writes), "--window", "16", "--no-ecn", "--block", "128K",
		"--seeds", strconv.Itoa(seeds)); err != nil {
		return nil, nil, fmt.Errorf("mcsim: %w", err)
	}
	sim = map[string]float64{}
	for _, r := range simulated {
		sim[r.Scheme] += r.Ratio / seeds
	}
	return lab, sim, nil
}
