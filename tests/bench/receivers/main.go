// Command receivers measures the processor time per packet at a host that receives copies, in each
// mode of the ICRC: one sender and three receivers at an embedded switch, programs in network
// namespaces. Each mode has its own lab. The labs take turns, and the ratio is the median of the
// turns' ratios, so that other load matters less.
//
//	go run ./tests/bench/receivers [-rounds 9] [-time 2s] [-size 65536] [-mtu 4096] [-options rx=raw] [-most 1.05]
//
// It needs root, makes everything itself, and leaves nothing behind. With -most it fails if the
// ratio is higher.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/report"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

type options struct {
	rounds, size, mtu int
	span              time.Duration
	device            string
	most              float64
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 9, "how many turns each mode has; medians are shown")
	flag.DurationVar(&o.span, "time", 2*time.Second, "how long each turn takes")
	flag.IntVar(&o.size, "size", 64<<10, "bytes of a WRITE")
	flag.IntVar(&o.mtu, "mtu", 4096, "path MTU")
	flag.StringVar(&o.device, "options", "rx=raw", "of the receivers' devices")
	flag.Float64Var(&o.most, "most", 0, "how many times as much processor time a packet may take with icrc: neutral as with recompute")
	flag.Parse()
	lab.Main("receivers", "receivers", func(ctx context.Context, dir string) error { return run(ctx, dir, o) })
}

// A contestant is the lab of one mode.
type contestant struct {
	mode    string
	lab     *lab.Lab
	takes   []float64 // µs per packet, by turn
	packets uint64
}

func run(ctx context.Context, dir string, o options) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it takes root", lab.ErrUnable)
	}
	programs, err := lab.Build(filepath.Join(dir, "bin"))
	if err != nil {
		return err
	}
	all := []*contestant{{mode: "recompute"}, {mode: "neutral"}}
	for _, c := range all {
		if err := c.start(ctx, programs, filepath.Join(dir, c.mode), o); err != nil {
			return fmt.Errorf("icrc: %s: %w", c.mode, err)
		}
		defer func() { err = errors.Join(err, c.lab.Close()) }()
	}
	fmt.Printf("\nWRITEs of %d bytes to three receivers (%s), path MTU %d; %d processors, load %s at the start\n",
		o.size, o.device, o.mtu, runtime.NumCPU(), report.Load())
	for i := range o.rounds + 1 {
		for _, c := range all {
			took, err := c.turn(ctx, o)
			if err != nil {
				return fmt.Errorf("icrc: %s: %w", c.mode, err)
			}
			if i > 0 { // the first is a warm-up
				c.takes = append(c.takes, took)
			}
		}
		slices.Reverse(all)
	}
	return show(all, o)
}

func show(all []*contestant, o options) error {
	slices.SortFunc(all, func(a, b *contestant) int { return strings.Compare(b.mode, a.mode) })
	ratios := make([]float64, o.rounds)
	for i := range ratios {
		ratios[i] = all[1].takes[i] / all[0].takes[i]
	}
	slices.Sort(ratios)
	ratio := ratios[len(ratios)/2]
	tab := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "ICRC\tCPU µs/packet\tmin\tmax\tpackets\tratio\tmin\tmax\t")
	for i, c := range all {
		slices.Sort(c.takes)
		fmt.Fprintf(tab, "%s\t%.2f\t%.2f\t%.2f\t%d\t", c.mode, c.takes[len(c.takes)/2], c.takes[0], c.takes[len(c.takes)-1], c.packets)
		if i == 0 {
			fmt.Fprintln(tab, "\t\t\t")
			continue
		}
		fmt.Fprintf(tab, "%.3f\t%.3f\t%.3f\t\n", ratio, ratios[0], ratios[len(ratios)-1])
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	if o.most > 0 && ratio > o.most {
		return fmt.Errorf("a packet takes %.3f times as much processor time in mode neutral, more than %.3f", ratio, o.most)
	}
	return nil
}

const group = "g"

func (c *contestant) start(ctx context.Context, programs lab.Programs, dir string, o options) error {
	err := os.Mkdir(dir, 0o700)
	if err != nil {
		return err
	}
	// No other mode is allowed: a group that needs another is refused.
	spec := lab.Spec{Racks: []int{4}, Switches: map[string]lab.Switch{"torA": {Agent: "icrc: " + c.mode + "\n"}}}
	if c.lab, err = lab.Start(ctx, programs, dir, spec); err != nil {
		return err
	}
	for i, h := range c.lab.Hosts {
		var options []string
		if i > 0 {
			options = append(options, o.device)
		}
		err = errors.Join(
			h.Member.Do(ctx, orders.OpenDevice, orders.DeviceArgs{Device: h.Device(options...)}, nil),
			h.Member.Do(ctx, orders.Dial, orders.DialArgs{Socket: h.Socket, Program: "member"}, nil),
			h.Member.Do(ctx, orders.Listen, orders.ListenArgs{Service: "s"}, nil))
		if err != nil {
			return errors.Join(err, c.lab.Close())
		}
	}
	args := orders.CreateArgs{Name: group, Service: "s", Mode: "require", Regions: []uint64{uint64(o.size)}, MTU: o.mtu} //nolint:gosec // a flag
	for _, h := range c.lab.Hosts[1:] {
		args.Receivers = append(args.Receivers, h.Addr.String())
	}
	if err := c.lab.Hosts[0].Member.Do(ctx, orders.Create, args, nil); err != nil {
		return errors.Join(err, c.lab.Close())
	}
	return nil
}

// turn returns the cost of a packet at the receivers, in µs.
func (c *contestant) turn(ctx context.Context, o options) (float64, error) {
	packets, used, err := c.counts(ctx)
	if err != nil {
		return 0, err
	}
	args := orders.WorkArgs{Name: group, Kinds: []string{"write"}, Sizes: []int{o.size}, Depth: 8, Millis: int(o.span.Milliseconds())}
	if err := c.lab.Hosts[0].Member.Do(ctx, orders.Work, args, nil); err != nil {
		return 0, err
	}
	packetsAfter, usedAfter, err := c.counts(ctx)
	if err != nil {
		return 0, err
	}
	packets = packetsAfter - packets
	if packets < 100 {
		return 0, fmt.Errorf("only %d packets came", packets)
	}
	c.packets += packets
	return (usedAfter - used).Seconds() * 1e6 / float64(packets), nil
}

// counts are the packets received by the receivers' devices, and the processor time of their
// processes.
func (c *contestant) counts(ctx context.Context) (packets uint64, used time.Duration, err error) {
	for _, h := range c.lab.Hosts[1:] {
		n, err := lab.Ask[map[string]uint64](ctx, h.Member, orders.Counters, nil)
		if err != nil {
			return 0, 0, err
		}
		if bad := n["rx_drop_icrc"]; bad > 0 {
			return 0, 0, fmt.Errorf("%s has dropped %d packets for their ICRC", h.Name, bad)
		}
		packets += n["rx_packets"]
		used += time.Duration(n[orders.ProcessorTime]) //nolint:gosec // ns
	}
	return packets, used, nil
}
