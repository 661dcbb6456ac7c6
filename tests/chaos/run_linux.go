package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/tests/chaos/history"
	"github.com/mcrdma/mcrdma/tests/chaos/orders"
	"github.com/mcrdma/mcrdma/tests/chaos/plan"
	"github.com/mcrdma/mcrdma/tests/chaos/skew"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

const (
	// bound is how long an operation may be in flight after the last fault has ended, or after its
	// submission; docs/failures.md explains it.
	bound = 20 * time.Second
	// settling is how long members may take to get the end of a group, and the remains of groups to
	// disappear: the longest of leases and grace, and the time to act on it.
	settling = 15 * time.Second
)

// daemons shortens the labs' leases. A host counts as dead after the default time.
const daemons = "leases: {member: 4s, group: 4s}\nbeat: {dead_after: 2s, grace: 4s}\n"

// build compiles the programs of labs, and others of the repository, into dir, with a clock that
// can be set if required.
func build(dir string, clocks bool, others ...string) error {
	const module = "github.com/mcrdma/mcrdma/"
	args := []string{"build", "-o", dir + "/"}
	if clocks {
		overlay, err := overlay(dir)
		if err != nil {
			return err
		}
		args = append(args, "-overlay", overlay)
	}
	for _, p := range append([]string{"cmd/switchctl", "cmd/cmd-daemon"}, others...) {
		args = append(args, module+p)
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// buildGroups compiles the programs of labs for groups.
func buildGroups(dir string, clocks bool) (lab.Programs, error) {
	return lab.Programs{Switchctl: filepath.Join(dir, "switchctl"), Daemon: filepath.Join(dir, "cmd-daemon"), Member: filepath.Join(dir, "app")},
		build(dir, clocks, "tests/chaos/app")
}

// overlay makes programs use clocks that can be set.
func overlay(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	return skew.Overlay(dir)
}

// A run is one plan being carried out.
type run struct {
	plan *plan.Plan
	lab  *lab.Lab
	dir  string
	how  manner

	nodes  map[string]*node // hosts and switches
	closed chan struct{}    // when the groups are closed
	late   sync.WaitGroup   // faults that may last until then

	mu     sync.Mutex
	hosts  map[string]*host
	quiet  time.Time // when the last fault had ended
	events []string  // problems with faults
	struck int       // faults of KillAtWrite that happened
	copies int       // see result
	icrc   error     // why switches do not keep the ICRC of copies
}

// A host of a run.
type host struct {
	*lab.HostNode
	life   int          // of its application: the number of earlier ones
	killed map[int]bool // lives that were killed
}

// A result is the result of a run.
type result struct {
	Groups     []*history.Group
	Violations []string
	Struck     int    // processes that were killed at a write
	Copies     int    // copies for receivers, before the first fault, with the original ICRC
	InKernel   uint64 // packets to groups that the switches' kernels have copied since the last start of the switches
	Took       time.Duration
	Logs       string // of all processes
}

// carryOut carries out a plan and judges the result. An error means that it could not be carried
// out.
func carryOut(ctx context.Context, programs lab.Programs, dir string, p *plan.Plan, how manner) (res *result, err error) {
	start := time.Now()
	r := &run{plan: p, dir: dir, how: how, hosts: map[string]*host{}, closed: make(chan struct{})}
	if err := r.makeNodes(); err != nil {
		return nil, err
	}
	defer r.closeNodes()
	spec := how.spec(lab.Spec{Racks: p.Racks, Wired: true, Daemon: daemons, Prepare: r.prepare(programs)})
	if r.lab, err = lab.Start(ctx, programs, dir, spec); err != nil {
		return nil, err
	}
	mine := belongings(r.lab)
	defer mine.close()
	closed := false
	defer func() {
		if !closed {
			err = errors.Join(err, r.lab.Close())
		}
	}()
	for _, h := range r.lab.Hosts {
		r.hosts[h.Name] = &host{HostNode: h, killed: map[int]bool{}}
	}
	if err := r.begin(ctx); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, r.lab.Logs())
	}
	r.wreck(ctx)
	res = &result{}
	if r.icrc != nil {
		res.Violations = append(res.Violations, "icrc: "+r.icrc.Error())
	}
	res.Violations = append(res.Violations, r.end(ctx)...)
	if how.fastPath {
		if res.InKernel, err = inKernel(ctx, r.lab); err != nil {
			res.Violations = append(res.Violations, "fast path: "+err.Error())
		}
	}
	closed = true
	if err := r.lab.Close(); err != nil {
		res.Violations = append(res.Violations, "end: "+err.Error())
	}
	res.Violations = append(res.Violations, r.remains(mine)...)
	for i := range p.Groups {
		g, err := r.history(&p.Groups[i])
		if err != nil {
			res.Violations = append(res.Violations, "journal: "+err.Error())
			continue
		}
		res.Groups = append(res.Groups, g)
		for _, v := range history.Check(g) {
			res.Violations = append(res.Violations, v.String())
		}
	}
	res.Struck, res.Copies, res.Took, res.Logs = r.struck, r.copies, time.Since(start), r.lab.Logs()
	return res, nil
}

// begin starts the applications, creates the groups and starts their work.
func (r *run) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := lab.Each(r.lab.Hosts, func(h *lab.HostNode) error { return r.open(ctx, r.hosts[h.Name], h.Member, 0) }); err != nil {
		return err
	}
	if r.how.fastPath {
		if err := r.lab.InKernel(ctx); err != nil {
			return err
		}
	}
	if err := r.keepCopies(plan.BeforeGroups); err != nil {
		return err
	}
	addresses := map[string]string{}
	for _, h := range r.lab.Hosts {
		addresses[h.Name] = h.Addr.String()
	}
	for _, g := range r.plan.Groups {
		if err := r.hosts[g.Sender].Member.Do(ctx, orders.Create, orders.CreateArgs{Group: g, Addresses: addresses}, nil); err != nil {
			return fmt.Errorf("group %s: %w", g.Name, err)
		}
	}
	// Here agents choose the mode of the ICRC, and all devices support the preferred one.
	r.copies, r.icrc = r.lab.CopiesKeepICRC(ctx)
	if r.how.liar {
		if err := r.lie(); err != nil {
			return err
		}
	}
	for _, g := range r.plan.Groups {
		if err := r.hosts[g.Sender].Member.Do(ctx, orders.Work, orders.Name{Name: g.Name}, nil); err != nil {
			return err
		}
	}
	return nil
}

// end ends the groups, undoes all faults, and looks for remains.
func (r *run) end(ctx context.Context) (bad []string) {
	ctx, cancel := context.WithTimeout(ctx, 2*bound+4*settling)
	defer cancel()
	var mu sync.Mutex
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		bad = append(bad, fmt.Sprintf(format, args...))
	}
	_ = lab.Each(r.plan.Groups, func(g plan.Group) error {
		if m, life := r.app(g.Sender); m != nil && life == 0 {
			if err := m.Do(ctx, orders.Finish, orders.FinishArgs{Name: g.Name, Millis: int((bound + settling).Milliseconds())}, nil); err != nil {
				note("hang: group %s: %v", g.Name, err)
			}
		}
		return nil
	})
	close(r.closed)
	r.late.Wait()
	for _, text := range r.heal(ctx) {
		note("restart: %s", text)
	}
	_ = lab.Each(r.plan.Groups, func(g plan.Group) error {
		return lab.Each(g.All(), func(name string) error {
			if m, _ := r.app(name); m != nil {
				if err := m.Do(ctx, orders.Settle, orders.FinishArgs{Name: g.Name, Millis: int(settling.Milliseconds())}, nil); err != nil {
					note("hang: group %s at %s: %v", g.Name, name, err)
				}
			}
			return nil
		})
	})
	if err := r.lab.CheckLeftovers(ctx, settling); err != nil {
		note("left: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	for name := range r.hosts {
		if text := r.queuePairs(ctx, name); text != "" {
			note("left: %s: %s", name, text)
		}
	}
	if err := r.states(ctx); err != nil {
		note("left: in the daemons' states: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return bad
}

// queuePairs reports queue pairs of a host's application that should not exist.
func (r *run) queuePairs(ctx context.Context, name string) string {
	m, _ := r.app(name)
	if m == nil {
		return ""
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left, err := lab.Ask[orders.LeftResult](ctx, m, orders.Left, nil)
		if err == nil && left.QPs == 0 {
			return ""
		}
		if time.Now().After(deadline) {
			return fmt.Sprintf("%d queue pairs, %v", left.QPs, err)
		}
	}
}

// history collects the record of a group.
func (r *run) history(g *plan.Group) (*history.Group, error) {
	h := &history.Group{Name: g.Name, Key: g.Key, Quiet: r.quiet.UnixMicro(), Bound: bound.Microseconds(), SenderLived: !r.hosts[g.Sender].killed[0]}
	h.Blamable, h.Doomed = r.plan.Blame(g)
	var err error
	if h.Sender, err = journal(filepath.Join(r.dir, orders.SenderFile(g.Name))); err != nil {
		return nil, err
	}
	for _, name := range g.All() {
		m := history.Member{Name: name}
		for life := 0; life <= r.hosts[name].life; life++ {
			log, err := journal(filepath.Join(r.dir, orders.MemberFile(g.Name, name, life)))
			if err != nil {
				return nil, err
			}
			l := history.Life{Log: log, Lived: !r.hosts[name].killed[life]}
			for i := range g.Regions {
				b, err := os.ReadFile(filepath.Join(r.dir, orders.RegionFile(g.Name, name, life, i)))
				if err == nil {
					l.Regions = append(l.Regions, b)
				} else if !errors.Is(err, os.ErrNotExist) {
					return nil, err
				}
			}
			m.Lives = append(m.Lives, l)
		}
		h.Members = append(h.Members, m)
	}
	return h, nil
}

// journal reads a file; nothing if it does not exist.
func journal(name string) ([]history.Entry, error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := history.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return list, nil
}
