package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// timings are the times of the phases of several groups.
type timings struct {
	groups int
	order  []string // of phases, as they first occurred
	phases map[string][]time.Duration
	paths  map[string]int // number of groups by path
}

func (t *timings) add(phase string, took time.Duration) {
	if t.phases[phase] == nil {
		t.order = append(t.order, phase)
	}
	t.phases[phase] = append(t.phases[phase], took)
}

// reset discards the measurements, and keeps the order of phases.
func (t *timings) reset() {
	t.groups = 0
	clear(t.paths)
	for s := range t.phases {
		t.phases[s] = t.phases[s][:0]
	}
}

// A timingReport is the JSON.
type timingReport struct {
	Service   string         `json:"service"`
	Receivers []string       `json:"receivers"`
	Groups    int            `json:"groups"`
	Paths     map[string]int `json:"paths"`
	Phases    []phaseTimes   `json:"phases"`
}

// phaseTimes are the times of one phase, in microseconds.
type phaseTimes struct {
	Phase string  `json:"phase"`
	Times int     `json:"times"`
	Min   float64 `json:"min_us"`
	Avg   float64 `json:"avg_us"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	Max   float64 `json:"max_us"`
}

func (t *timings) report(cfg mcrdma.GroupConfig) timingReport {
	r := timingReport{Service: cfg.Service, Receivers: cfg.Receivers, Groups: t.groups, Paths: t.paths}
	for _, name := range t.order {
		if len(t.phases[name]) > 0 {
			r.Phases = append(r.Phases, summary(name, t.phases[name]))
		}
	}
	return r
}

// summary summarizes a phase.
func summary(name string, took []time.Duration) phaseTimes {
	sorted := slices.Sorted(slices.Values(took))
	var sum time.Duration
	for _, d := range sorted {
		sum += d
	}
	n := len(sorted)
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()/100) / 10 }
	// The smallest value that is not exceeded by that many percent.
	percentile := func(p int) float64 { return us(sorted[max((p*n+99)/100, 1)-1]) }
	return phaseTimes{name, n, us(sorted[0]), us(sum / time.Duration(n)), percentile(50), percentile(99), us(sorted[n-1])}
}

func (r timingReport) rows() (rows [][]any) {
	for _, s := range r.Phases {
		row := []any{s.Phase, s.Times}
		for _, us := range []float64{s.Min, s.Avg, s.P50, s.P99, s.Max} {
			row = append(row, int64(us+0.5))
		}
		rows = append(rows, row)
	}
	return rows
}

// pathText returns whether switches or hosts copied.
func (t *timings) pathText() string {
	var parts []string
	for _, p := range slices.Sorted(maps.Keys(t.paths)) {
		parts = append(parts, fmt.Sprintf("%s by %s", cli.Plural(t.paths[p], "group"), cmp.Or(map[string]string{"switch": "switches", "relay": "hosts"}[p], p)))
	}
	return strings.Join(parts, ", ")
}
