package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mcrdma/mcrdma/cmd/internal/plot"
)

// writePlot plots a report to a file: ratios, which depend less on machines, and the measured
// values.
func writePlot(name string, r *report) error {
	return plot.Write(name, "mcbench "+r.Info.Test+", receivers "+strings.Join(r.Info.Receivers, ", "), conditions(r), panelsOf(r))
}

// conditions returns what all values have in common.
func conditions(r *report) string {
	var list []string
	for _, d := range dimensions {
		if v := distinct(r, d.of); len(v) == 1 && v[0] != "0" {
			list = append(list, d.label+": "+v[0])
		}
	}
	if r.Info.Lab {
		list = append(list, "lab on loopback, "+rateText(r.Info.Rate))
	}
	if r.Info.Rounds > 1 {
		list = append(list, fmt.Sprintf("%d rounds", r.Info.Rounds))
	}
	if r.Info.Check {
		list = append(list, "content verified")
	}
	return strings.Join(list, "; ")
}

// A dimension is one that may have several values in a report.
type dimension struct {
	label string
	of    func(x *result) string
}

var dimensions = []dimension{
	{"bytes of a write", func(x *result) string { return sizeText(x.MsgSize) }},
	{"writes under way", func(x *result) string { return fmt.Sprint(x.Depth) }},
	{"loss between the racks", func(x *result) string { return shareText(x.Loss) }},
}

func sizeText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%dM", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%dK", n>>10)
	}
	return fmt.Sprint(n)
}

// panelsOf chooses the panels. The x axis is the first dimension with several values; each way is a
// curve, once for each value of the other dimensions.
func panelsOf(r *report) []plot.Panel {
	axis := 0
	for i := len(dimensions) - 1; i >= 0; i-- {
		if values := distinct(r, dimensions[i].of); len(values) > 1 {
			axis = i
		}
	}
	ticks := distinct(r, dimensions[axis].of)
	curve := func(x *result) string {
		name := x.Way
		for i, d := range dimensions {
			if i != axis && len(distinct(r, d.of)) > 1 {
				name += ", " + d.label + " " + d.of(x)
			}
		}
		return name
	}
	build := func(title string, value, base func(x *result) float64) plot.Panel {
		p := plot.Panel{Title: title, Label: dimensions[axis].label, Ticks: ticks}
		for _, name := range distinct(r, curve) {
			s := plot.Series{Name: name, Points: make([]float64, len(ticks))}
			var first float64 // the divisor of the curve's values
			for i := range r.Results {
				x := &r.Results[i]
				if curve(x) != name {
					continue
				}
				if first == 0 {
					first = base(x)
				}
				if first > 0 {
					s.Points[slices.Index(ticks, dimensions[axis].of(x))] = value(x) / first
				}
			}
			p.Series = append(p.Series, s)
		}
		return p
	}
	one := func(*result) float64 { return 1 }
	latency := func(x *result) float64 { return x.Avg }
	p99 := func(x *result) float64 { return x.P99 }
	bandwidth := func(x *result) float64 { return x.BWAverage }
	base := r.Info.Ways[0]
	absolute := func(title string, value func(x *result) float64) plot.Panel {
		p := build(title, value, one)
		p.Absolute = true
		return p
	}
	panels := []plot.Panel{absolute("mean latency[usec]", latency), absolute("99% latency[usec]", p99),
		absolute("bandwidth[Gb/sec]", bandwidth), absolute("sender's CPU per write[usec]", func(x *result) float64 { return x.CPU })}
	switch {
	case axis == 2: // each way compared with itself
		return append([]plot.Panel{build("throughput, relative to that without loss", bandwidth, bandwidth), build("99% latency, relative to that without loss", p99, p99)}, panels...)
	case len(r.Info.Ways) > 1:
		ratios := []plot.Panel{build("latency, relative to "+base, func(x *result) float64 { return x.LatencyRatio }, one),
			build("bandwidth, relative to "+base, func(x *result) float64 { return x.BandwidthRatio }, one),
			build("sender's CPU per write, relative to "+base, func(x *result) float64 { return x.CPURatio }, one)}
		if r.Info.Lab {
			ratios = append(ratios, build("sender's bytes per byte of payload", func(x *result) float64 { return x.Uplink }, one))
		}
		return append(ratios, panels...)
	}
	return panels
}

func distinct(r *report, of func(*result) string) (values []string) {
	for i := range r.Results {
		if v := of(&r.Results[i]); !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}
