package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/tests/chaos/history"
	"github.com/mcrdma/mcrdma/tests/chaos/orders"
	"github.com/mcrdma/mcrdma/tests/chaos/plan"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// The profiles of docs/failures.md.
var profiles = []struct{ name, beat string }{
	{"default", "beat: {grace: 4s}\n"},
	{"fast", fast},
}

const fast = "beat: {interval: 20ms, dead_after: 280ms, grace: 4s}\n"

// A death is a way for a receiver to die.
type death struct {
	name, mode string
	vanishes   bool // its host is cut off; else its application is killed
}

var deaths = []death{
	{"its process is killed, switches copy", "require", false},
	{"its host is cut off, switches copy", "require", true},
	{"its process is killed, hosts relay", "off", false},
}

// A bench is a lab in which receivers die, one after another.
type bench struct {
	*run
	last int // number of the last group
}

func newBench(ctx context.Context, programs lab.Programs, base, beat string) (*bench, error) {
	dir, err := os.MkdirTemp(base, "measure-")
	if err != nil {
		return nil, err
	}
	b := &bench{run: &run{plan: &plan.Plan{Racks: []int{2, 2}}, dir: dir, hosts: map[string]*host{}}}
	spec := lab.Spec{Racks: b.plan.Racks, Wired: true, Daemon: "leases: {member: 4s, group: 4s}\n" + beat}
	if b.lab, err = lab.Start(ctx, programs, dir, spec); err != nil {
		return nil, err
	}
	for _, h := range b.lab.Hosts {
		b.hosts[h.Name] = &host{HostNode: h, killed: map[int]bool{}}
		if err := b.open(ctx, b.hosts[h.Name], h.Member, 0); err != nil {
			return nil, errors.Join(err, b.lab.Close())
		}
	}
	return b, nil
}

// group creates a group of h1 with all others, and starts its work.
func (b *bench) group(ctx context.Context, mode string) (*plan.Group, error) {
	b.last++
	g := &plan.Group{Name: fmt.Sprint("g", b.last), Key: uint64(b.last), Sender: "h1", Receivers: []string{"h2", "h3", "h4"}, Mode: mode, MinSize: 1, //nolint:gosec // counts
		Regions: []int{1 << 20}, Kinds: []string{history.Write}, Largest: 4096, Depth: 4}
	addresses := map[string]string{}
	for _, name := range g.Receivers {
		addresses[name] = b.lab.Host(name).Addr.String()
		if err := b.hosts[name].Member.Do(ctx, orders.Listen, orders.ListenArgs{Group: *g}, nil); err != nil {
			return nil, err
		}
	}
	h1 := b.hosts["h1"].Member
	return g, errors.Join(h1.Do(ctx, orders.Create, orders.CreateArgs{Group: *g, Addresses: addresses}, nil),
		h1.Do(ctx, orders.Work, orders.Name{Name: g.Name}, nil))
}

const (
	warmUp   = 300 * time.Millisecond  // of work, before a receiver dies
	killed   = 1200 * time.Millisecond // of work, when an application was killed
	vanished = 2500 * time.Millisecond // of work, when a host was cut off
)

// errSpoilt: the measurement is invalid because of another fault, such as another receiver that did
// not answer in time on a busy machine.
var errSpoilt = errors.New("spoilt")

// kill kills a receiver, and returns how long the sender waited for it.
func (b *bench) kill(ctx context.Context, d death, victim string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	g, err := b.group(ctx, d.mode)
	if err != nil {
		return 0, err
	}
	sleep(ctx, warmUp)
	f := plan.Fault{What: plan.KillApp, Node: victim}
	if d.vanishes {
		f = plan.Fault{What: plan.Cut, Node: victim, Other: b.lab.Host(victim).ToR().Name}
	}
	died := time.Now()
	b.do(f)
	if d.vanishes {
		sleep(ctx, vanished)
	} else {
		sleep(ctx, killed)
	}
	if err := b.hosts["h1"].Member.Do(ctx, orders.Finish, orders.FinishArgs{Name: g.Name, Millis: 10_000}, nil); err != nil {
		return 0, err
	}
	if d.vanishes {
		if err := b.undo(ctx, f); err != nil {
			return 0, err
		}
		for _, other := range b.lab.Hosts {
			if other.Name != victim {
				if err := errors.Join(other.Reach(ctx, b.lab.Host(victim).Addr), b.lab.Host(victim).Reach(ctx, other.Addr)); err != nil {
					return 0, err
				}
			}
		}
	} else {
		h := b.hosts[victim]
		h.life++
		if err := h.NewMember(ctx); err != nil {
			return 0, err
		}
		if err := b.open(ctx, h, h.Member, h.life); err != nil {
			return 0, err
		}
	}
	if err := b.lab.CheckLeftovers(ctx, settling); err != nil {
		return 0, err
	}
	log, err := journal(filepath.Join(b.dir, orders.SenderFile(g.Name)))
	if err != nil {
		return 0, err
	}
	return waited(log, died.UnixMicro(), victim)
}

// waited returns the time from a receiver's death to the sender's next completion without the dead
// receiver: the one that ends the longest pause that began between the death and the removal.
func waited(log []history.Entry, died int64, victim string) (time.Duration, error) {
	last, longest, end := died, int64(0), int64(0)
	removed, over := false, false
	for _, e := range log {
		removed = removed || e.What == history.Removed && e.Member == victim
		if e.What != history.Done || e.At < died {
			continue
		}
		if e.Text != "" {
			return 0, fmt.Errorf("%w: operation %d: %s", errSpoilt, e.N, e.Text)
		}
		if pause := e.At - last; pause > longest && !over {
			longest, end = pause, e.At
		}
		last, over = e.At, removed
	}
	if !removed {
		return 0, fmt.Errorf("%w: %s was not removed", errSpoilt, victim)
	}
	return time.Duration(end-died) * time.Microsecond, nil
}

// measure prints how long a sender waits for its next completion when a receiver dies.
func measure(ctx context.Context, programs lab.Programs, base string, kills int) error {
	for _, p := range profiles {
		fmt.Printf("%s profile: %s", p.name, p.beat)
		b, err := newBench(ctx, programs, base, p.beat)
		if err != nil {
			return err
		}
		for _, d := range deaths {
			var list []time.Duration
			spoilt := 0
			for i := range kills {
				w, err := b.kill(ctx, d, []string{"h2", "h3", "h4"}[i%3])
				if errors.Is(err, errSpoilt) {
					spoilt++
					continue
				} else if err != nil {
					return errors.Join(fmt.Errorf("%s, %d: %w\n%s", d.name, i, err, b.lab.Logs()), b.lab.Close())
				}
				list = append(list, w.Round(100*time.Microsecond))
			}
			fmt.Printf("  %-40s %s", d.name+",", distribution(list))
			if spoilt > 0 {
				fmt.Printf("; %d more were spoilt by a busy machine", spoilt)
			}
			fmt.Println()
		}
		if err := b.lab.Close(); err != nil {
			return err
		}
	}
	return nil
}

// distribution summarizes a list of times.
func distribution(list []time.Duration) string {
	n := len(list)
	if n == 0 {
		return "never"
	}
	slices.Sort(list)
	return fmt.Sprintf("%d times: p50 %v, p99 %v, longest %v", n, list[n/2], list[min(n-1, n*99/100)], list[n-1])
}

// soak runs groups for some time on some processors, with the fast profile, and reports members
// that were suspected or removed; none should be.
func soak(ctx context.Context, programs lab.Programs, base string, d time.Duration, cpus int) error {
	if cpus > 0 {
		var set unix.CPUSet
		for i := range cpus {
			set.Set(i)
		}
		// For all threads: children start on any of them.
		tasks, err := filepath.Glob("/proc/self/task/*")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid := 0
			if _, err := fmt.Sscan(filepath.Base(t), &tid); err == nil {
				err = unix.SchedSetaffinity(tid, &set)
				if err != nil {
					return err
				}
			}
		}
	}
	b, err := newBench(ctx, programs, base, fast)
	if err != nil {
		return err
	}
	start := time.Now()
	g, err := b.group(ctx, "require")
	if err == nil {
		sleep(ctx, d)
		err = b.hosts["h1"].Member.Do(context.WithoutCancel(ctx), orders.Finish, orders.FinishArgs{Name: g.Name, Millis: 10_000}, nil)
	}
	took := time.Since(start)
	if err := errors.Join(err, b.lab.Close()); err != nil {
		return err
	}
	log, err := journal(filepath.Join(b.dir, orders.SenderFile(g.Name)))
	if err != nil {
		return err
	}
	suspicions := 0
	for _, e := range log {
		if e.What == history.Removed || e.What == history.Note {
			fmt.Printf("  after %d s: %s\n", (e.At-log[0].At)/1e6, e.Text)
			if e.What == history.Removed || len(e.Text) > 9 && e.Text[:9] == "suspected" {
				suspicions++
			}
		}
	}
	s := history.Summarize(&history.Group{Sender: log})
	fmt.Printf("%.0f s of load with the fast profile, on %d processors: %d operations, the longest took %d ms; suspected or removed: %d\n",
		took.Seconds(), cpus, s.Promised, s.Longest/1000, suspicions)
	if suspicions > 0 {
		return errors.New("receivers that were well have been suspected")
	}
	return nil
}
