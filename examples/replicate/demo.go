package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/examples/internal/bar"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/internal/lab"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

const (
	from   = "h1" // the sender
	victim = "h4" // is killed
)

var receivers = []string{"h2", "h3", victim}

// A demo is the demonstration.
type demo struct {
	settings *settings
	stderr   *os.File
	results  *os.File // for JSON
	out      *os.File // for people
	cancel   context.CancelCauseFunc

	lab    *lab.Lab
	sender *sender
	sum    [sha256.Size]byte // of the file
	bar    *bar.Bar
	log    tail

	mu        sync.Mutex
	remove    func() // removes the lab's directory; nil: there is none
	processes map[string]*process
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// start starts the lab and the applications.
func (d *demo) start(ctx context.Context, data []byte) error {
	begun := time.Now()
	dir, remove, err := lab.TempDir()
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.remove = remove
	d.mu.Unlock()
	d.say("Two racks and a spine, all on this machine: embedded P4 switches joined by UDP tunnels.\n\n%s", lab.Picture)
	d.lab, err = lab.Start(ctx, lab.Options{Dir: dir, Logger: d.logger(),
		Failed: func(err error) { d.cancel(err) }})
	if err != nil {
		return err
	}
	for _, host := range receivers {
		if err := d.startReceiver(ctx, host); err != nil {
			return err
		}
	}
	s := &sender{write: d.settings.write, depth: d.settings.depth}
	if s.client, err = mcrdma.Dial(ctx, mcrdma.Options{Socket: d.lab.Host(from).Socket}); err != nil {
		return fmt.Errorf("application on %s: %w", from, err)
	}
	d.sender = s
	if s.memory, err = s.client.Register(data); err != nil {
		return fmt.Errorf("application on %s: %w", from, err)
	}
	d.say("3 switches, each with its agent and BGP; 4 hosts, each with its daemon and mTLS; 4 applications: ready after %.1f s.\n",
		time.Since(begun).Seconds())
	return nil
}

func (d *demo) startReceiver(ctx context.Context, host string) error {
	p, err := startReceiver(ctx, host, d.lab.Host(host).Socket, d.stderr)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes[host] = p
	return nil
}

func (d *demo) process(host string) *process {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.processes[host]
}

// replicate replicates the file in one way, and checks the replicas.
func (d *demo) replicate(ctx context.Context, number int, w way) (wayResult, error) {
	g, err := d.sender.group(ctx, w, receivers)
	if err != nil {
		return wayResult{}, err
	}
	defer func() { _ = closeGroup(g) }() // again
	d.say("\n%d. %s\n   %s", number, w.title(), strings.Join(g.Info().Why, "\n   "))
	if w.path == mcrdma.PathSwitch {
		if err := d.draw(ctx, g); err != nil {
			return wayResult{}, err
		}
	}
	before := d.uplinks()
	d.bar = bar.New(d.out, int64(len(d.sender.memory.Bytes())))
	c, err := d.sender.replicate(ctx, g, d.bar.Add, nil)
	d.bar.End()
	if err != nil {
		return wayResult{}, err
	}
	sums, err := d.check(ctx, g, receivers)
	if err != nil {
		return wayResult{}, err
	}
	if err := d.endGroup(ctx, g, receivers); err != nil {
		return wayResult{}, err
	}
	after, info := d.uplinks(), g.Info()
	r := wayResult{Way: w.name, Path: info.Path.String(), Algorithm: info.Algorithm, Replicas: sums,
		Seconds: c.took.Seconds(), Writes: d.sender.writes(), Posts: info.Stats.Posts, Completions: info.Stats.Completions}
	r.count(before, after, len(d.sender.memory.Bytes()))
	d.say("   %s have it after %.2f s; their SHA-256 are equal to the file's.", list(receivers), r.Seconds)
	return r, nil
}

// uplinks is what each host has sent so far.
func (d *demo) uplinks() map[string]uint64 {
	m := map[string]uint64{}
	for _, h := range append([]string{from}, receivers...) {
		m[h] = d.lab.Uplink(h)
	}
	return m
}

// check waits until receivers have the whole file, and compares.
func (d *demo) check(ctx context.Context, g *mcrdma.Group, receivers []string) (map[string]string, error) {
	id, sums := g.Info().ID.String(), map[string]string{}
	for _, host := range receivers {
		r, err := d.process(host).expect(ctx, "to have the file", func(r report) bool { return r.Group == id })
		if err != nil {
			return nil, err
		}
		if r.Ended != "" {
			return nil, fmt.Errorf("the receiver at %s is in the group no longer, and without the file: %s", host, r.Ended)
		}
		if !bytes.Equal(r.SHA256, d.sum[:]) {
			return nil, fmt.Errorf("the replica at %s is not equal: SHA-256 %x, the file's is %x", host, r.SHA256, d.sum)
		}
		sums[host] = hexText(r.SHA256)
	}
	return sums, nil
}

// endGroup ends a group, and waits until its receivers have learned of it.
func (d *demo) endGroup(ctx context.Context, g *mcrdma.Group, receivers []string) error {
	id := g.Info().ID.String()
	if err := closeGroup(g); err != nil {
		return fmt.Errorf("closing the group: %w", err)
	}
	for _, host := range receivers {
		if _, err := d.process(host).expect(ctx, "to see the group's end", func(r report) bool { return r.Group == id && r.Ended != "" }); err != nil {
			return err
		}
	}
	return nil
}

// draw draws a group's tree, as the agents have it.
func (d *demo) draw(ctx context.Context, g *mcrdma.Group) error {
	info := g.Info()
	source, err := netip.ParseAddr(info.ID.Source)
	if err != nil {
		return err
	}
	var b strings.Builder
	if err := d.lab.Draw(ctx, &b, grouptree.Key{Source: source, ID: info.MCID}); err != nil {
		return fmt.Errorf("drawing the tree: %w", err)
	}
	for line := range strings.Lines(b.String()) {
		fmt.Fprint(d.out, "      ", line)
	}
	return nil
}

// failure replicates by the switches while a receiver is killed.
func (d *demo) failure(ctx context.Context) (*failureResult, error) {
	d.say("%d. %s again; in the middle, the receiver on %s is killed", len(ways)+1, ways[0].title(), victim)
	g, err := d.sender.group(ctx, ways[0], receivers)
	if err != nil {
		return nil, err
	}
	defer func() { _ = closeGroup(g) }() // again
	begun := time.Now()
	d.bar = bar.New(d.out, int64(len(d.sender.memory.Bytes())))
	r := &failureResult{Killed: victim}
	removed, events := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(events)
		for e := range g.Events() {
			if e.Type == mcrdma.EventClosed {
				continue // by endGroup
			}
			text := fmt.Sprintf("%5.0f ms  %v", float64(e.Time.Sub(begun).Microseconds())/1e3, e)
			d.bar.Line("   " + text)
			r.Events = append(r.Events, text)
			if e.Type == mcrdma.EventRemoved && e.Host == victim {
				close(removed)
			}
		}
	}()
	c, err := d.sender.replicate(ctx, g, d.bar.Add, func() {
		d.bar.Line(fmt.Sprintf("   %5.0f ms  kill -9 %d, the receiver on %s", float64(time.Since(begun).Microseconds())/1e3,
			d.process(victim).Process.Pid, victim))
		d.kill(victim)
	})
	d.bar.End()
	if err != nil {
		return nil, err
	}
	left := slices.DeleteFunc(slices.Clone(receivers), func(h string) bool { return h == victim })
	if r.Replicas, err = d.check(ctx, g, left); err != nil {
		return nil, err
	}
	select {
	case <-removed:
	case <-events:
		return nil, fmt.Errorf("no event told that %s was removed", victim)
	case <-time.After(patience):
		return nil, fmt.Errorf("within %v no event told that %s was removed", patience, victim)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	for _, m := range g.Info().Members {
		if m.Host == victim {
			return nil, fmt.Errorf("%s still is a member", victim)
		}
	}
	r.Seconds, r.Pause = c.took.Seconds(), c.pause.Seconds()
	d.say("   %s have the whole file after %.2f s, of which the longest pause was %.0f ms. The tree now:", list(left), r.Seconds, 1e3*r.Pause)
	if err := d.draw(ctx, g); err != nil {
		return nil, err
	}
	if err := d.endGroup(ctx, g, left); err != nil {
		return nil, err
	}
	<-events
	return r, nil
}

// kill kills a host's receiver.
func (d *demo) kill(host string) {
	p := d.process(host)
	p.Kill()
	_ = p.close()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.processes, host)
}

// close ends everything, applications first.
func (d *demo) close() error {
	d.mu.Lock()
	processes := d.processes
	d.processes = nil
	d.mu.Unlock()
	errs := make([]error, len(receivers))
	var wg sync.WaitGroup
	for i, host := range receivers {
		if p := processes[host]; p != nil {
			wg.Go(func() { errs[i] = p.close() })
		}
	}
	wg.Wait()
	if d.sender != nil {
		errs = append(errs, d.sender.client.Close())
	}
	if d.lab != nil {
		errs = append(errs, d.lab.Close())
	}
	d.removeDir()
	return errors.Join(errs...)
}

func (d *demo) removeDir() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.remove != nil {
		d.remove()
		d.remove = nil
	}
}

// abandon is for an abrupt exit: nothing is ended, but files that would stay are
// removed. Receivers end with this process.
func (d *demo) abandon() { d.removeDir() }

// logger is where agents, daemons and switches log to.
func (d *demo) logger() *slog.Logger {
	if d.settings.verbose {
		return slog.New(slog.NewTextHandler(d.stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.NewTextHandler(&d.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// A tail keeps the last lines that are written to it.
type tail struct {
	mu    sync.Mutex
	lines []string
}

const tailLines = 20

var _ io.Writer = (*tail)(nil)

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, string(p))
	if n := len(t.lines); n > tailLines {
		t.lines = slices.Delete(t.lines, 0, n-tailLines)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "")
}
