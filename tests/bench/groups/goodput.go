package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/mcrdma/mcrdma/tests/bench/report"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

const (
	writeSize = 1 << 20
	depth     = 4 // WRITEs in flight

	multicast, fanOut, fanOutTCP, unicast = "multicast to 3", "fan-out to 3", "fan-out to 3, TCP", "unicast to 1"

	overFanOut, ofUnicast = 2.8, 0.95 // goals
)

// A contestant moves bytes for a while.
type contestant struct {
	name  string
	begin func(ctx context.Context) error
	run   func(ctx context.Context) (bits float64, err error) // payload in bits per second
	end   func(ctx context.Context) error
	got   []float64
}

// goodput measures contestants in turns at a limited uplink.
func goodput(ctx context.Context, l *lab.Lab, o options) error {
	h1 := l.Host("h1")
	if err := h1.Space.Limit("eth0", o.rate*1e6); err != nil {
		return fmt.Errorf("limiting the uplink: %w", err)
	}
	contestants := []*contestant{group(l, multicast, "require", "", o), group(l, fanOut, "off", "rdma", o), group(l, fanOutTCP, "off", "tcp", o), stream(h1, l.Host("h3"), o, 4096)}
	for range o.rounds {
		for _, c := range contestants {
			if err := c.round(ctx); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	fmt.Printf("\nWRITEs of 1 MB, %d at a time, through an uplink of %d Mb/s, medians of %d rounds of %v, load %s:\n", depth, o.rate, o.rounds, o.span, report.Load())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "contestant\tMb/s of payload\tof unicast\tof fan-out\tof the rate\tleast\tmost\t")
	medians := map[string]float64{}
	for _, c := range contestants {
		slices.Sort(c.got)
		medians[c.name] = c.got[len(c.got)/2]
	}
	for _, c := range contestants {
		m := medians[c.name]
		fmt.Fprintf(w, "%s\t%.1f\t%.2f\t%.2f\t%.2f\t%.1f\t%.1f\t\n", c.name, m/1e6, m/medians[unicast], m/medians[fanOut], m/float64(o.rate*1e6), c.got[0]/1e6, c.got[len(c.got)-1]/1e6)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println(report.Verdict("multicast to fan-out", medians[multicast]/max(medians[fanOut], medians[fanOutTCP]), overFanOut, "x", true))
	fmt.Println(report.Verdict("multicast to unicast", medians[multicast]/medians[unicast], ofUnicast, "x", true))
	return nil
}

func (c *contestant) round(ctx context.Context) error {
	if err := c.begin(ctx); err != nil {
		return err
	}
	bits, err := c.run(ctx)
	if err != nil {
		return err
	}
	c.got = append(c.got, bits)
	return c.end(ctx)
}

// group is a group of h1 with all other hosts.
func group(l *lab.Lab, name, mode, transport string, o options) *contestant {
	h1 := l.Host("h1")
	return &contestant{name: name, begin: func(ctx context.Context) error {
		return h1.Member.Do(ctx, orders.Create, orders.CreateArgs{Name: name, Service: service, Receivers: receivers(l), Mode: mode,
			Algorithm: map[string]string{"off": "sequential"}[mode], Transport: transport, Regions: []uint64{2 * writeSize}, TypicalSize: writeSize}, nil)
	}, run: func(ctx context.Context) (float64, error) {
		r, err := lab.Ask[orders.WorkResult](ctx, h1.Member, orders.Work, orders.WorkArgs{Name: name, Kinds: []string{"write"}, Sizes: []int{writeSize},
			Depth: depth, Millis: int(o.span.Milliseconds()), Seed: 1})
		if err != nil {
			return 0, err
		}
		g, err := lab.Ask[orders.GroupInfo](ctx, h1.Member, orders.Info, orders.Name{Name: name})
		if err == nil && len(g.Members) != len(l.Hosts)-1 {
			events, _ := lab.Ask[[]orders.Event](ctx, h1.Member, orders.Events, orders.Name{Name: name})
			err = fmt.Errorf("%d of %d receivers are left: %+v", len(g.Members), len(l.Hosts)-1, events)
		}
		return float64(r.Bytes) * 8 / r.Took.Seconds(), err
	}, end: func(ctx context.Context) error {
		return h1.Member.Do(ctx, orders.Close, orders.Name{Name: name}, nil)
	}}
}

// stream is an ordinary connection.
func stream(from, to *lab.HostNode, o options, mtu int) *contestant {
	return &contestant{name: unicast, begin: func(ctx context.Context) error {
		var ends [2]orders.FlowAddr
		both := []*lab.HostNode{from, to}
		for i, h := range both {
			if err := h.Member.Do(ctx, orders.FlowEnd, orders.FlowEndArgs{Name: unicast, Size: 2 * writeSize}, &ends[i]); err != nil {
				return err
			}
		}
		for i, h := range both {
			if err := h.Member.Do(ctx, orders.FlowJoin, orders.FlowJoinArgs{Name: unicast, Peer: ends[1-i], PSN: 1, MTU: mtu}, nil); err != nil {
				return err
			}
		}
		return nil
	}, run: func(ctx context.Context) (float64, error) {
		r, err := lab.Ask[orders.FlowResult](ctx, from.Member, orders.FlowRun, orders.FlowRunArgs{Name: unicast, Size: writeSize, Depth: depth, Millis: int(o.span.Milliseconds())})
		return float64(r.Bytes) * 8 / r.Took.Seconds(), err
	}, end: func(context.Context) error { return nil }}
}
