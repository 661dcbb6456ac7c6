package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/internal/lab"
	"github.com/mcrdma/mcrdma/tests/bench/report"
)

// A process is a child process whose standard output is lines of JSON.
type process struct {
	*lab.Child
	lines chan json.RawMessage
}

func start(socket string, args ...string) (*process, error) {
	c, err := lab.NewChild(args...)
	if err != nil {
		return nil, err
	}
	p := &process{Child: c, lines: make(chan json.RawMessage, 4)}
	c.Env = append(c.Env, socketEnv+"="+socket)
	c.Stderr = os.Stderr
	return p, c.Start(func(out io.Reader) {
		defer close(p.lines)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.lines <- slices.Clone(lines.Bytes())
		}
	})
}

// next reads the next line of the process.
func (p *process) next(ctx context.Context, to any) error {
	select {
	case line, ok := <-p.lines:
		if !ok {
			<-p.Done
			return fmt.Errorf("a process has ended: %w", p.Err)
		}
		return json.Unmarshal(line, to)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// patience is the timeout for steps that take seconds without other load.
const patience = 5 * time.Minute

// run does one run.
func run(ctx context.Context, o options, groups, busy int) (_ *result, err error) {
	dir, err := os.MkdirTemp("", "busy")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeoutCause(ctx, patience+o.span, errors.New("it takes too long"))
	defer cancel()
	r := &result{Groups: groups, Busy: busy, Why: map[string]int{}}
	news := &news{Handler: o.log.Handler(), r: r}
	l, err := lab.Start(ctx, lab.Options{Dir: dir, Groups: mostGroups, Logger: slog.New(news), Failed: func(err error) { fmt.Fprintln(os.Stderr, err); cancel() }})
	if err != nil {
		return nil, err
	}
	var all []*process
	defer func() {
		for _, p := range all {
			p.Kill()
		}
		err = errors.Join(err, l.Close())
	}()
	var apps []*process
	for i, h := range hosts {
		n := 0
		if i == 0 {
			n = groups
		}
		p, err := start(l.Host(h).Socket, "app", h, strconv.Itoa(n), o.span.String())
		if err != nil {
			return nil, err
		}
		apps, all = append(apps, p), append(all, p)
	}
	for _, step := range []string{"listens", "has groups"} {
		for _, p := range apps {
			if err := p.next(ctx, new(string)); err != nil {
				return nil, fmt.Errorf("%s: %w", step, err)
			}
		}
		for range busy * strings.Count(step, "has") {
			p, err := start("", "spin")
			if err != nil {
				return nil, err
			}
			all = append(all, p)
		}
		for _, p := range apps { // the next step
			if _, err := p.Input.Write([]byte("\n")); err != nil {
				return nil, err
			}
		}
	}
	news.begin()
	stop := make(chan struct{})
	late := lateness(stop)
	before := seconds(apps)
	select {
	case <-time.After(o.span):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	r.CPU = seconds(apps) - before
	close(stop)
	delays := <-late
	r.LateP99, r.LateMax = delays[len(delays)*99/100], delays[len(delays)-1]
	r.Load = load()
	for _, p := range all[len(apps):] { // operations in flight may end soon
		p.Kill()
	}
	return r, judge(ctx, r, apps, o.span)
}

// judge collects the senders' results, and compares the replicas.
func judge(ctx context.Context, r *result, apps []*process, span time.Duration) error {
	want := map[string]map[string]string{} // by receiver and group
	var bytes int
	for _, p := range apps {
		var s sent
		if err := p.next(ctx, &s); err != nil {
			return err
		}
		bytes += s.Bytes
		r.Removed += s.Removed
		r.Failed += s.Failed
		r.Reformed += s.Reformed
		r.Longest = max(r.Longest, s.Longest)
		for _, g := range s.Groups {
			for _, m := range g.Members {
				if want[m] == nil {
					want[m] = map[string]string{}
				}
				want[m][g.ID] = g.Digest
			}
		}
	}
	r.Goodput = float64(bytes) * 8 / 1e9 / span.Seconds()
	r.PerCPU = float64(bytes) * 8 / 1e6 / r.CPU
	for _, p := range apps {
		if _, err := p.Input.Write([]byte("\n")); err != nil {
			return err
		}
	}
	for i, p := range apps {
		have := map[string]string{}
		if err := p.next(ctx, &have); err != nil {
			return err
		}
		for g, d := range want[hosts[i]] {
			if have[g] != d {
				r.Different++
			}
		}
	}
	return nil
}

// seconds is the processor time that this process and the applications have used.
func seconds(apps []*process) (sum float64) {
	pids := []int{os.Getpid()}
	for _, p := range apps {
		pids = append(pids, p.Process.Pid)
	}
	for _, pid := range pids {
		used, _ := report.UsedBy(pid) // one that has ended reports its time itself
		sum += used.Seconds()
	}
	return sum
}

func load() float64 {
	f, _ := strconv.ParseFloat(report.Load(), 64)
	return f
}

// lateness measures how much longer than asked for this process sleeps, in order.
func lateness(stop <-chan struct{}) <-chan []time.Duration {
	out := make(chan []time.Duration, 1)
	go func() {
		const nap = 10 * time.Millisecond
		var list []time.Duration
		for {
			begun := time.Now()
			select {
			case <-stop:
				slices.Sort(list)
				out <- list
				return
			case <-time.After(nap):
				list = append(list, time.Since(begun)-nap)
			}
		}
	}()
	return out
}

// news counts log messages of agents and daemons.
type news struct {
	slog.Handler
	mu    sync.Mutex
	begun bool
	r     *result
}

func (n *news) begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.begun = true
}

func (n *news) Enabled(context.Context, slog.Level) bool { return true }

func (n *news) WithAttrs(a []slog.Attr) slog.Handler { return &child{n.Handler.WithAttrs(a), n} }

func (n *news) Handle(ctx context.Context, r slog.Record) error { return n.take(ctx, n.Handler, r) }

// A child is a handler with attributes.
type child struct {
	slog.Handler
	n *news
}

func (c *child) Enabled(context.Context, slog.Level) bool { return true }

func (c *child) WithAttrs(a []slog.Attr) slog.Handler { return &child{c.Handler.WithAttrs(a), c.n} }

func (c *child) Handle(ctx context.Context, r slog.Record) error { return c.n.take(ctx, c.Handler, r) }

var figures = regexp.MustCompile(`[0-9][0-9a-zµ.]*`)

func (n *news) take(ctx context.Context, h slog.Handler, r slog.Record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.begun {
		r.Attrs(func(a slog.Attr) bool {
			switch {
			case r.Message == "link" && a.Key == "up" && !a.Value.Bool():
				n.r.LinksDown++
			case r.Message != "link" && (a.Key == "why" || r.Level >= slog.LevelWarn && a.Key == "error"):
				n.r.Why[r.Message+": "+figures.ReplaceAllString(a.Value.String(), "#")]++
			}
			return true
		})
	}
	if h.Enabled(ctx, r.Level) {
		return h.Handle(ctx, r)
	}
	return nil
}
