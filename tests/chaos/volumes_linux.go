package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/tests/chaos/volume"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// whole is how long a volume may take after the last fault has ended until it serves and all hosts
// are in its acting set: leases and graces, detection, and the copy of a store.
const whole = 30 * time.Second

// effect is the maximum time of an operation while nothing fails that clients need, on a busy
// machine.
const effect = time.Second

// A volumeResult is the result of a run.
type volumeResult struct {
	Violations []string
	Ops        int
	Losses     int           // losses of all memory
	Epochs     uint64        // of the map
	Longest    time.Duration // of an operation
	Took       time.Duration
	Logs       string
	Kept       string // the files to judge
	Copies     int    // as in result
	InKernel   uint64 // as in result
}

// carryOutVolume carries out a plan and judges the result. An error means that it could not be
// carried out.
func carryOutVolume(ctx context.Context, programs volumePrograms, dir string, p *volume.Plan, how manner) (*volumeResult, error) {
	begun := time.Now()
	r, err := newRack(ctx, programs, dir, p, how)
	if err != nil {
		return nil, err
	}
	res := &volumeResult{Copies: r.copies}
	bad := func(format string, args ...any) {
		res.Violations = append(res.Violations, fmt.Sprintf(format, args...))
	}
	if r.icrc != nil {
		bad("icrc: %v", r.icrc)
	}
	mine := belongings(r.lab)
	defer mine.close()
	h := &volume.History{}
	clients := make([]*volume.Client, p.Clients)
	working, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for i := range clients {
		clients[i] = &volume.Client{ID: i, Export: export, Hosts: []string{"h1", "h2", "h3"}, Blocks: p.Blocks, Dial: r.dial, History: h, Rand: rand.New(rand.NewPCG(p.Seed, uint64(i)))} //nolint:gosec // small
		wg.Go(func() { clients[i].Work(working) })
	}
	for _, text := range r.wreck(ctx) {
		bad("fault: %s", text)
	}
	waiting, cancel := context.WithTimeoutCause(ctx, whole, fmt.Errorf("not within %v of the last fault", whole))
	defer cancel()
	serves := r.all(waiting)
	if serves == nil {
		sleep(ctx, 300*time.Millisecond) // of work with all copies
	}
	stop()
	wg.Wait()
	if serves == nil {
		serves = r.last(clients, h)
	}
	if serves != nil {
		bad("live: %v", serves)
	}
	for _, l := range r.lab.Hosts {
		if !r.blocks[l.Name].Running() {
			bad("end: %s has ended by itself", r.blocks[l.Name].Name)
		}
	}
	m, _ := r.latest() // hosts that end one after another change it
	res.Epochs = m.Epoch
	if how.fastPath {
		if res.InKernel, err = inKernel(ctx, r.lab); err != nil {
			bad("fast path: %v", err)
		}
	}
	if err := r.close(); err != nil {
		bad("end: %v", err)
	}
	if text := mine.inhabited(); text != "" {
		bad("left: %s", text)
	}
	res.judge(r, h)
	res.Took, res.Logs = time.Since(begun), r.logs()
	return res, nil
}

// last waits for operations in flight, and reads each block at each host.
func (r *rack) last(clients []*volume.Client, h *volume.History) error {
	if err := lab.Each(clients, func(c *volume.Client) error {
		if !c.Done(whole) {
			return fmt.Errorf("operations of client %d are under way %v after the last fault", c.ID, whole)
		}
		return nil
	}); err != nil {
		return err
	}
	return lab.Each(r.lab.Hosts, func(l *lab.HostNode) error {
		c := &volume.Client{ID: len(clients), Export: export, Dial: r.dial, History: h}
		if err := c.ReadAll(l.Name, r.plan.Blocks, whole); err != nil {
			return fmt.Errorf("reading at %s: %w", l.Name, err)
		}
		return nil
	})
}

// judge finds broken promises.
func (res *volumeResult) judge(r *rack, h *volume.History) {
	ops, torn := h.Ops()
	for _, o := range torn {
		res.Violations = append(res.Violations, fmt.Sprintf("torn: a read saw parts of two writes: %+v", o))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	losses, bad := volume.Losses(r.maps, r.lives)
	res.Kept = fmt.Sprintf("maps: %+v\nlives: %+v\nlosses: %v\n", r.maps, r.lives, losses)
	for _, o := range ops {
		res.Kept += fmt.Sprintf("%+v\n", o)
	}
	res.Violations = append(append(res.Violations, bad...), volume.Check(ops, losses)...)
	for _, o := range ops {
		if o.Return != volume.Never {
			res.Ops++
			res.Longest = max(res.Longest, time.Duration(o.Return-o.Call))
		}
	}
	res.Losses = len(losses)
	if r.plan.Quiet() && (res.Longest > effect || res.Epochs != r.begun) {
		res.Violations = append(res.Violations, fmt.Sprintf("effect: etcd alone was away, or clocks jumped; an operation took %v, and epoch %d was followed by %d", res.Longest, r.begun, res.Epochs))
	}
}

// wreck injects the faults, each at its time, and returns when the time for work has passed and all
// have ended.
func (r *rack) wreck(ctx context.Context) (bad []string) {
	start := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, f := range r.plan.Faults {
		wg.Go(func() {
			sleep(ctx, time.Until(start.Add(f.At)))
			undo, err := r.do(f)
			sleep(ctx, f.For)
			if undo != nil {
				err = errors.Join(err, undo(ctx))
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				bad = append(bad, fmt.Sprintf("%v: %v", f, err))
			}
		})
	}
	sleep(ctx, time.Until(start.Add(r.plan.Work)))
	wg.Wait()
	return bad
}

// do begins a fault, and returns a function that ends it.
func (r *rack) do(f volume.Fault) (undo func(context.Context) error, err error) {
	node := r.node(f.Node)
	one := []string{node}
	all := []string{"h1", "h2", "h3"}
	sw := r.lab.Switches[0]
	switch f.What {
	case volume.KillBlock:
		return r.kill(one, false)
	case volume.KillAll:
		return r.kill(all, false)
	case volume.PowerLoss:
		return r.kill(one, true)
	case volume.AllPower:
		return r.kill(all, true)
	case volume.FreezeBlock:
		return freeze(r.blocks[node]), nil
	case volume.KillDaemon:
		return r.killed(r.lab.Host(node).Daemon), nil
	case volume.StopDaemon:
		return freeze(r.lab.Host(node).Daemon), nil
	case volume.KillAgent:
		return r.killed(sw.Agent), nil
	case volume.StopAgent:
		return freeze(sw.Agent), nil
	case volume.KillSwitch:
		return r.killed(sw.Switch), nil
	case volume.StopSwitch:
		return freeze(sw.Switch), nil
	case volume.KillEtcd:
		return r.killed(r.etcds[node[1]-'1']), nil
	case volume.StopEtcd:
		return freeze(r.etcds[node[1]-'1']), nil
	case volume.EtcdAway:
		return freeze(r.etcds...), nil
	case volume.ClockBack, volume.ClockAhead:
		by := time.Hour
		if f.What == volume.ClockBack {
			by = -by
		}
		c := r.clocks[node]
		return func(context.Context) error { return c.Set(start) }, c.Set(start + by)
	case volume.Cut:
		return func(context.Context) error { return r.lab.Impair(node, sw.Name, lab.Impairment{}) }, r.lab.Impair(node, sw.Name, lab.Cut)
	}
	return nil, errors.New("no such fault")
}

// node returns the node of a fault, at this moment.
func (r *rack) node(name string) string {
	m, _ := r.latest()
	switch name {
	case volume.Primary:
		return fmt.Sprint("h", m.Primary.ID)
	case volume.Replica:
		others := slices.DeleteFunc(slices.Clone(m.Acting), func(x core.Member) bool { return x.ID == m.Primary.ID })
		if len(others) > 0 {
			return fmt.Sprint("h", others[len(others)-1].ID)
		}
		return fmt.Sprint("h", m.Primary.ID)
	}
	return name
}

func freeze(list ...*lab.Process) func(context.Context) error {
	for _, p := range list {
		p.Signal(unix.SIGSTOP)
	}
	return func(context.Context) error {
		for _, p := range list {
			p.Signal(unix.SIGCONT)
		}
		return nil
	}
}

// killed kills a process that keeps no data of a volume.
func (r *rack) killed(p *lab.Process) func(context.Context) error {
	r.kills.down(p)
	return func(ctx context.Context) error { return r.kills.up(p, func() error { return p.Start(ctx) }) }
}

// kill kills mcblock on hosts at the same time; with power, their unsynced data, and that of their
// daemons, is lost.
func (r *rack) kill(hosts []string, power bool) (func(context.Context) error, error) {
	var list, without []*lab.Process // without power
	for _, h := range hosts {
		list = append(list, r.blocks[h])
		if power {
			without = append(without, r.lab.Host(h).Daemon)
		}
	}
	r.kills.down(append(list, without...)...)
	var errs []error
	for _, h := range hosts {
		r.ended(h)
		if !power {
			continue
		}
		rng := rand.New(rand.NewPCG(r.plan.Seed, uint64(hostID(h))))
		none := rng.IntN(2) == 0 || r.plan.Lying
		errs = append(errs, r.disks[h].Lose(func(string) bool { return !none && rng.IntN(2) == 0 }))
	}
	return func(ctx context.Context) error {
		return errors.Join(lab.Each(without, func(d *lab.Process) error { return r.kills.up(d, func() error { return d.Start(ctx) }) }),
			lab.Each(hosts, func(h string) error { return r.kills.up(r.blocks[h], func() error { return r.startBlock(ctx, h) }) }))
	}, errors.Join(errs...)
}

// oneVolume carries out the plan of a run. If it fails, it keeps the output of the processes.
func oneVolume(ctx context.Context, programs volumePrograms, base string, p *volume.Plan, how manner, keep string) (*volumeResult, error) {
	dir, err := os.MkdirTemp(base, "run-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	res, err := carryOutVolume(ctx, programs, dir, p, how)
	if err != nil || len(res.Violations) == 0 && !keepAll || keep == "" {
		return res, err
	}
	keep = filepath.Join(keep, "volume-"+strings.ReplaceAll(p.Name(), " ", "-"))
	return res, errors.Join(os.MkdirAll(keep, 0o750), os.WriteFile(filepath.Join(keep, "logs"), []byte(res.Logs), 0o600),
		os.WriteFile(filepath.Join(keep, "history"), []byte(res.Kept), 0o600))
}

func reportVolume(p *volume.Plan, res *volumeResult) string {
	return fmt.Sprintf("%v  %d operations, the longest took %v; epoch %d, %d times all memory was lost\n", p, res.Ops, res.Longest.Round(time.Millisecond), res.Epochs, res.Losses) +
		copiesText(res.Copies, res.InKernel) + verdict(res.Violations, res.Took)
}

// doVolumes carries out the runs with some numbers.
func doVolumes(ctx context.Context, numbers []uint64, how manner, times int, keep string) error {
	base, err := os.MkdirTemp("", "mcrdma-chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	of := volume.Of
	if how.liar {
		of = volume.Liar
	}
	var plans []*volume.Plan
	for _, n := range numbers {
		plans = append(plans, of(n))
	}
	programs, err := buildVolumes(filepath.Join(base, "bin"), plans...)
	if err != nil {
		return err
	}
	if times > 0 {
		return measureVolumes(ctx, programs, base, times)
	}
	ops := 0
	return each(plans, func(p *volume.Plan) (string, bool, error) {
		res, err := oneVolume(ctx, programs, base, p, how, keep)
		if err != nil {
			return "", false, err
		}
		ops += res.Ops
		return reportVolume(p, res), len(res.Violations) == 0, nil
	}, func() string { return fmt.Sprintf("%d operations", ops) })
}
