package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/tests/chaos/plan"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// wreck injects the faults, each at its time, and returns when the time for work has passed and all
// temporary faults have ended.
func (r *run) wreck(ctx context.Context) {
	start := time.Now()
	r.quiet = start
	var wg sync.WaitGroup
	for _, f := range r.plan.Faults {
		if f.What == plan.KillAtWrite {
			r.late.Go(func() { r.killAtWrite(ctx, f, start) })
			continue
		}
		wg.Go(func() {
			if f.What == plan.OldState && f.Copied != plan.BeforeGroups {
				sleep(ctx, time.Until(start.Add(f.Copied)))
				if err := r.keepCopy(f); err != nil {
					r.note("%v: %v", f, err)
				}
			}
			sleep(ctx, time.Until(start.Add(f.At)))
			r.do(f)
			if f.For > 0 {
				sleep(ctx, f.For)
				if err := r.undo(ctx, f); err != nil {
					r.note("%v: %v", f, err)
				}
			}
			r.mu.Lock()
			r.quiet = time.Now()
			r.mu.Unlock()
		})
	}
	sleep(ctx, time.Until(start.Add(r.plan.Work)))
	wg.Wait()
}

// do begins a fault.
func (r *run) do(f plan.Fault) {
	switch f.What {
	case plan.KillApp:
		r.mu.Lock()
		h := r.hosts[f.Node]
		m := h.Member
		h.killed[h.life] = true
		r.mu.Unlock()
		m.Kill()
	case plan.StopApp:
		if m, _ := r.app(f.Node); m != nil {
			m.Signal(unix.SIGSTOP)
		}
	case plan.KillDaemon, plan.WarpDaemon, plan.KillAgent, plan.WarpAgent, plan.KillSwitch:
		r.process(f).Kill()
	case plan.StopDaemon, plan.StopAgent, plan.StopSwitch:
		r.process(f).Signal(unix.SIGSTOP)
	case plan.SetClock:
		r.setClock(f)
	case plan.OldState:
		r.process(f).Kill()
		if err := r.putBack(f); err != nil {
			r.note("%v: %v", f, err)
		}
	case plan.FullDisk:
		if err := r.nodes[f.Node].disk.fill(); err != nil {
			r.note("%v: %v", f, err)
		}
	default:
		imp := lab.Impairment{Rate: f.Rate, Seed: r.plan.Seed}
		switch f.What {
		case plan.Cut:
			imp = lab.Cut
		case plan.Loss:
			imp.Loss = f.Share
		case plan.Reorder:
			imp.Reorder = f.Share
		case plan.Corrupt:
			imp.Corrupt = f.Share
		}
		if err := r.lab.Impair(f.Node, f.Other, imp); err != nil {
			r.note("%v: %v", f, err)
		}
	}
}

// undo ends a fault.
func (r *run) undo(ctx context.Context, f plan.Fault) error {
	switch f.What {
	case plan.KillApp:
		return r.another(ctx, f.Node)
	case plan.StopApp:
		if m, _ := r.app(f.Node); m != nil {
			m.Signal(unix.SIGCONT)
		}
	case plan.WarpDaemon, plan.WarpAgent:
		return r.restart(ctx, r.process(f), true)
	case plan.SetClock:
		f.By = -f.By
		r.setClock(f)
	case plan.FullDisk:
		d := r.nodes[f.Node].disk
		if !d.full() {
			return nil // it was freed already
		}
		if err := d.free(); err != nil {
			return err
		}
		r.process(f).Kill()
		return r.restart(ctx, r.process(f), false)
	case plan.KillDaemon, plan.KillAgent, plan.KillSwitch, plan.OldState, plan.KillAtWrite:
		return r.restart(ctx, r.process(f), false)
	case plan.StopDaemon, plan.StopAgent, plan.StopSwitch:
		r.process(f).Signal(unix.SIGCONT)
	default:
		return r.lab.Impair(f.Node, f.Other, lab.Impairment{})
	}
	return nil
}

// another starts an application in place of one that was killed. It listens for the same service.
func (r *run) another(ctx context.Context, name string) error {
	r.mu.Lock()
	h := r.hosts[name]
	defer r.mu.Unlock()
	if h.Member.Running() {
		return nil // two faults killed it at the same time
	}
	h.life++
	if err := h.NewMember(ctx); err != nil {
		return err
	}
	m, life := h.Member, h.life
	// It may be killed meanwhile, and its daemon may be down.
	go func() {
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		_ = r.open(ctx, h, m, life)
	}()
	return nil
}

// jump is the jump of clocks, in seconds.
const jump = "864000"

// restart starts a process that was killed; if it is to be warped, in its own time namespace, in
// which it is ten days later.
func (r *run) restart(ctx context.Context, p *lab.Process, warp bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Running() {
		return nil
	}
	if warp && p.Args[0] != "unshare" {
		p.Args = append([]string{"unshare", "--time", "--monotonic", jump, "--boottime", jump}, p.Args...)
	}
	err := p.Start(ctx)
	if n := r.nodes[p.Space.Name]; err != nil && n != nil && n.disk != nil && n.disk.full() {
		return nil // it is started again when there is space
	}
	return err
}

// heal undoes all faults, permanent ones too, except that killed applications stay dead.
func (r *run) heal(ctx context.Context) (bad []string) {
	for _, f := range r.plan.Faults {
		if f.What != plan.KillApp && f.What != plan.SetClock {
			if err := r.undo(ctx, f); err != nil {
				bad = append(bad, fmt.Sprintf("%v: %v", f, strings.ReplaceAll(err.Error(), "\n", "; ")))
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(bad, r.events...)
}

// killAtWrite kills a process before a durable write, if such a write happens before the groups are
// closed.
func (r *run) killAtWrite(ctx context.Context, f plan.Fault, start time.Time) {
	sleep(ctx, time.Until(start.Add(f.At)))
	w := r.nodes[f.Node].watcher
	died := w.Arm(f.N, f.Hold)
	select {
	case <-died:
	case <-r.closed:
		if w.Disarm() {
			return
		}
		<-died
	}
	r.process(f).Kill() // until it has ended
	sleep(ctx, f.For)
	if err := r.undo(ctx, f); err != nil {
		r.note("%v: %v", f, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.quiet = time.Now()
	r.struck++
}
