// Command groups measures groups in a lab of real programs: seven network namespaces, three
// switches, four hosts, mutual TLS (package tests/e2e/lab). It needs root, makes everything itself,
// and leaves nothing behind.
//
//   - how long it takes to make a group of three receivers across racks, from the
//     application's call to its being ready, by phase;
//   - what a sender gets through an uplink of limited rate with WRITEs of 1 MB: one
//     group by switch multicast, the same by copies that the sender makes (fan-out),
//     and one ordinary connection. The contestants take turns; medians are shown;
//   - what the whole lab does without a limit, with its switches in the kernel, out of it, and bmv2 if that is installed (ends): a group, and one
//     ordinary connection, how busy the processors are, and who takes how much of them for each GiB that a receiver gets.
//
// Run it on an idle machine:
//
//	go run ./tests/bench/groups [-groups 300] [-rounds 5] [-time 2s] [-rate 200] [-only create|goodput|ends]
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/report"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

type options struct {
	groups, rounds int
	span           time.Duration
	rate           uint64
	only, device   string
	dir            string // with the lab's files
}

func main() {
	var o options
	flag.IntVar(&o.groups, "groups", 300, "how many groups are made one after the other")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each contestant runs; medians are shown")
	flag.DurationVar(&o.span, "time", 2*time.Second, "how long each run takes")
	flag.Uint64Var(&o.rate, "rate", 200, "of the sender's uplink, Mb/s")
	flag.StringVar(&o.only, "only", "", "create, goodput, ends, ends-bmv2, ends-programs or ends-kernel: by its beginning")
	flag.StringVar(&o.device, "options", "", "of all hosts' devices, such as poll=off")
	flag.Parse()
	lab.Main("groups", "groups", func(ctx context.Context, dir string) error {
		o.dir = dir
		return run(ctx, o)
	})
}

func run(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it takes root", lab.ErrUnable)
	}
	p, err := lab.Build(filepath.Join(o.dir, "bin"))
	if err != nil {
		return err
	}
	fmt.Printf("%d processors, load %s at the start (other load distorts all figures)\n", runtime.NumCPU(), report.Load())
	var noBMv2 error
	p.BMv2, noBMv2 = lab.FindBMv2()
	for _, b := range []struct {
		name string
		spec lab.Spec
		run  func(context.Context, *lab.Lab, options) error
	}{{"create", lab.Spec{}, create}, {"goodput", lab.Spec{}, goodput}, {"ends-bmv2", onBMv2(), ends}, {"ends-programs", lab.Spec{}, ends}, {"ends-kernel", inKernel(), ends}} {
		if !strings.HasPrefix(b.name, o.only) {
			continue
		}
		if b.spec.BMv2 && noBMv2 != nil {
			fmt.Printf("SKIP %s: %v\n", b.name, noBMv2)
			continue
		}
		at, err := os.MkdirTemp(o.dir, b.name)
		if err != nil {
			return err
		}
		l, err := lab.Start(ctx, p, at, b.spec)
		if err != nil {
			return err
		}
		device := o.device
		if b.spec.BMv2 { // its queues hold 64 packets
			device = cmp.Or(device, "window=32")
		}
		if err = dial(ctx, l, device); err == nil {
			err = b.run(ctx, l, o)
		}
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, l.Logs())
		}
		if err = errors.Join(err, l.Close()); err != nil {
			return err
		}
	}
	return nil
}

// dial connects all applications to their daemons, and makes them receive.
func dial(ctx context.Context, l *lab.Lab, device string) error {
	for _, h := range l.Hosts {
		if err := h.Member.Do(ctx, orders.OpenDevice, orders.DeviceArgs{Device: strings.TrimSuffix("softroce:"+h.Addr.String()+"?"+device, "?")}, nil); err != nil {
			return err
		}
		if err := h.Member.Do(ctx, orders.Dial, orders.DialArgs{Socket: h.Socket, Program: "bench"}, nil); err != nil {
			return err
		}
		if err := h.Member.Do(ctx, orders.Listen, orders.ListenArgs{Service: service, Receives: 16}, nil); err != nil {
			return err
		}
	}
	return nil
}
