package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// timings are how long the steps of several groups took.
type timings struct {
	groups int
	order  []string // of steps, as they first came
	steps  map[string][]time.Duration
	paths  map[string]int // how often each
}

func (t *timings) add(step string, took time.Duration) {
	if t.steps == nil {
		t.steps = map[string][]time.Duration{}
	}
	if t.steps[step] == nil {
		t.order = append(t.order, step)
	}
	t.steps[step] = append(t.steps[step], took)
}

// reset forgets what was measured; the order of steps stays.
func (t *timings) reset() {
	t.groups = 0
	clear(t.paths)
	for s := range t.steps {
		t.steps[s] = t.steps[s][:0]
	}
}

// A timingReport is the JSON.
type timingReport struct {
	Service   string         `json:"service"`
	Receivers []string       `json:"receivers"`
	Groups    int            `json:"groups"`
	Paths     map[string]int `json:"paths"`
	Steps     []stepTimes    `json:"steps"`
}

// stepTimes are of one step, in microseconds.
type stepTimes struct {
	Step  string  `json:"step"`
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
		if len(t.steps[name]) > 0 {
			r.Steps = append(r.Steps, summary(name, t.steps[name]))
		}
	}
	return r
}

// summary sums a step up.
func summary(name string, took []time.Duration) stepTimes {
	sorted := slices.Sorted(slices.Values(took))
	var sum time.Duration
	for _, d := range sorted {
		sum += d
	}
	n := len(sorted)
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()/100) / 10 }
	// The smallest value that so many of a hundred do not exceed.
	percentile := func(p int) float64 { return us(sorted[max((p*n+99)/100, 1)-1]) }
	return stepTimes{name, n, us(sorted[0]), us(sum / time.Duration(n)), percentile(50), percentile(99), us(sorted[n-1])}
}

func (r timingReport) rows() (rows [][]any) {
	for _, s := range r.Steps {
		row := []any{s.Step, s.Times}
		for _, us := range []float64{s.Min, s.Avg, s.P50, s.P99, s.Max} {
			row = append(row, int64(us+0.5))
		}
		rows = append(rows, row)
	}
	return rows
}

// pathText says who copied.
func (t *timings) pathText() string {
	var parts []string
	for _, p := range slices.Sorted(maps.Keys(t.paths)) {
		parts = append(parts, fmt.Sprintf("%s by %s", cli.Plural(t.paths[p], "group"), cmp.Or(map[string]string{"switch": "switches", "relay": "hosts"}[p], p)))
	}
	return strings.Join(parts, ", ")
}

// A progress says how far something is, if it takes more than a second, and then once a
// second: on a terminal in one line.
type progress struct {
	w     io.Writer
	live  bool
	total int
	what  string
	last  time.Time
	shown bool
}

func newProgress(w io.Writer, total int, what string) *progress {
	f, ok := w.(*os.File)
	return &progress{w: w, live: ok && cli.IsTerminal(f), total: total, what: what, last: time.Now()}
}

// step tells that n are done.
func (p *progress) step(n int) {
	if time.Since(p.last) < time.Second {
		return
	}
	p.last, p.shown = time.Now(), true
	line := fmt.Sprintf("%d of %s", n, cli.Plural(p.total, p.what))
	if p.live {
		fmt.Fprintf(p.w, "\r\x1b[K%s", line)
	} else {
		fmt.Fprintln(p.w, line)
	}
}

// done takes the line away.
func (p *progress) done() {
	if p.live && p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
