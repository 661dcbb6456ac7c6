package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/tests/bench/report"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// inKernel is a lab whose switches forward most packets in the kernel.
func inKernel() lab.Spec { return lab.Spec{FastPath: true, MTU: 2200, Switches: neutral} }

// onBMv2 is a lab with bmv2 switches.
func onBMv2() lab.Spec { return lab.Spec{BMv2: true, FullRate: true, Switches: neutral} }

var neutral = map[string]lab.Switch{"torA": {Agent: agent}, "spine": {Agent: agent}, "torB": {Agent: agent}}

const agent = "icrc: neutral\n"

// The consumers of processor time.
const (
	theSender = iota
	theReceivers
	theSwitches
	others // daemons and agents, and other processes on the machine
	parts
)

// cost is processor time, of the whole machine and of each part.
type cost [parts]time.Duration

// used returns the processor time used so far.
func used(l *lab.Lab) (c cost, err error) {
	if c[others], err = busyTime(); err != nil {
		return c, err
	}
	add := func(part int, p *lab.Process) {
		t, terr := report.UsedBy(p.PID())
		c[part], c[others], err = c[part]+t, c[others]-t, errors.Join(err, terr)
	}
	for i, h := range l.Hosts {
		add(min(i, theReceivers), h.Member.Process)
	}
	for _, n := range l.Switches {
		add(theSwitches, n.Switch)
	}
	return c, err
}

// busyTime is the time of all processors so far, except idle time.
func busyTime() (sum time.Duration, err error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var user, nice, system, idle, wait, hard, soft time.Duration
	_, err = fmt.Sscanf(string(b), "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &wait, &hard, &soft)
	return (user + nice + system + hard + soft) * report.Tick, err
}

// A turn is one turn of a contestant.
type turn struct {
	bits, busy float64 // bits of payload per second, and number of busy processors
	takes      cost    // per GiB at a receiver
}

// ends measures a group and an ordinary connection in turns, without a limit.
func ends(ctx context.Context, l *lab.Lab, o options) error {
	where := "in programs"
	switch {
	case l.Spec.FastPath:
		where = "in the kernel"
	case l.Spec.BMv2:
		where = "of bmv2"
	}
	all := []struct {
		*contestant
		receivers int
		runs      []turn
	}{{contestant: group(l, multicast, "require", "", o), receivers: len(l.Hosts) - 1},
		{contestant: stream(l.Host("h1"), l.Host("h3"), o, qp.MTUFor(l.Spec.MTU)), receivers: 1}}
	for i := range all {
		if err := all[i].begin(ctx); err != nil {
			return fmt.Errorf("%s: %w", all[i].name, err)
		}
	}
	for i := range o.rounds + 1 {
		for n := range all {
			c := &all[n]
			before, err := used(l)
			if err != nil {
				return err
			}
			start := time.Now()
			bits, err := c.run(ctx)
			took := time.Since(start)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			after, err := used(l)
			if err != nil {
				return err
			}
			if i == 0 { // a warm-up
				continue
			}
			r := turn{bits: bits}
			for part := range after {
				spent := after[part] - before[part]
				r.busy += spent.Seconds() / took.Seconds()
				r.takes[part] = time.Duration(float64(spent) / (bits / 8 * took.Seconds() * float64(c.receivers) / (1 << 30)))
			}
			c.runs = append(c.runs, r)
		}
	}
	fmt.Printf("\nWRITEs of 1 MB, %d at a time, without a limit, switches %s, MTU %d; medians of %d rounds of %v, load %s:\n", depth, where, l.Spec.MTU, o.rounds, o.span, report.Load())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "contestant\tMb/s of payload\tleast\tmost\tprocessors busy\ts/GiB and receiver\tsender\treceivers\tswitches\tothers\t")
	for _, c := range all {
		mid := func(f func(turn) float64) float64 { return report.MedianOf(c.runs, f) }
		bits := func(r turn) float64 { return r.bits / 1e6 }
		part := func(p int) float64 { return mid(func(r turn) float64 { return r.takes[p].Seconds() }) }
		slices.SortFunc(c.runs, func(a, b turn) int { return cmp.Compare(a.bits, b.bits) })
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.2f of %d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", c.name, mid(bits), bits(c.runs[0]), bits(c.runs[len(c.runs)-1]),
			mid(func(r turn) float64 { return r.busy }), runtime.NumCPU(),
			mid(func(r turn) float64 { return (r.takes[0] + r.takes[1] + r.takes[2] + r.takes[3]).Seconds() }),
			part(theSender), part(theReceivers), part(theSwitches), part(others))
	}
	return w.Flush()
}
