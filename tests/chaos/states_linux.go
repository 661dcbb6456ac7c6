package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/tests/chaos/orders"
	"github.com/mcrdma/mcrdma/tests/chaos/plan"
	"github.com/mcrdma/mcrdma/tests/chaos/skew"
	"github.com/mcrdma/mcrdma/tests/chaos/watch"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// A node is the data of a run about a host or a switch, except its processes.
type node struct {
	clock   *skew.Clock
	ahead   time.Duration         // of the clock; run.mu guards it
	disk    *disk                 // of the state; nil: the state is with the run's other files
	watcher *watch.Watcher        // of the daemon or the agent; nil: none
	copies  map[plan.Fault][]byte // of the state
}

// start is the time at which clocks begin: certificates are valid from then on, and clocks are set
// back to it.
const start = 100 * 24 * time.Hour

func (r *run) makeNodes() error {
	r.nodes = map[string]*node{}
	for _, name := range append(r.plan.Hosts(), r.plan.Switches()...) {
		n := &node{ahead: start, copies: map[plan.Fault][]byte{}}
		r.nodes[name] = n
		var err error
		if n.clock, err = skew.NewClock(filepath.Join(r.dir, name+".clock")); err != nil {
			return err
		}
		if err := n.clock.Set(n.ahead); err != nil {
			return err
		}
	}
	for _, f := range r.plan.Faults {
		if n := r.nodes[f.Node]; f.What == plan.FullDisk && n.disk == nil {
			var err error
			if n.disk, err = newDisk(); err != nil {
				return err
			}
			if err := os.Symlink(n.disk.dir, lab.StateDir(r.dir, f.Node)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) closeNodes() {
	for _, n := range r.nodes {
		if n.clock != nil {
			_ = n.clock.Close()
		}
		if n.disk != nil {
			_ = n.disk.close()
		}
		if n.watcher != nil {
			_ = n.watcher.Close()
		}
	}
}

// prepare returns a function that makes processes use the clocks of their nodes, and be watched if
// the plan kills them at a write.
func (r *run) prepare(programs lab.Programs) func(*lab.Process) {
	return func(p *lab.Process) {
		name := p.Space.Name
		p.Env = append(p.Env, skew.Variable+"="+filepath.Join(r.dir, name+".clock"))
		keeps := strings.HasPrefix(p.Name, "daemon") || strings.HasPrefix(p.Name, "agent")
		if !keeps || !slices.ContainsFunc(r.plan.Faults, func(f plan.Fault) bool { return f.What == plan.KillAtWrite && f.Node == name }) {
			return
		}
		socket := filepath.Join(r.dir, name+".watch")
		w, err := watch.Listen(socket, func() { p.Signal(unix.SIGKILL) })
		if err != nil {
			r.note("%s: %v", p.Name, err)
			return
		}
		r.nodes[name].watcher = w
		p.Args = append([]string{programs.Member, orders.Watched, socket}, p.Args...)
	}
}

// setClock makes a node's clock jump.
func (r *run) setClock(f plan.Fault) {
	n := r.nodes[f.Node]
	for i := range f.N {
		if i > 0 {
			time.Sleep(plan.Between)
		}
		r.mu.Lock()
		n.ahead += f.By
		err := n.clock.Set(n.ahead)
		r.mu.Unlock()
		if err != nil {
			r.note("%v: %v", f, err)
		}
	}
}

// keepCopies makes the copies of states at their times.
func (r *run) keepCopies(at time.Duration) error {
	for _, f := range r.plan.Faults {
		if f.What == plan.OldState && f.Copied == at {
			if err := r.keepCopy(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepCopy copies a state at one moment, like a snapshot of its disk. A process that uses it is
// stopped meanwhile.
func (r *run) keepCopy(f plan.Fault) error {
	p := r.process(f)
	if p.Running() {
		p.Signal(unix.SIGSTOP)
		defer p.Signal(unix.SIGCONT)
		for deadline := time.Now().Add(time.Second); !stopped(p.PID()); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				return errors.New("it does not stop")
			}
		}
	}
	b, err := os.ReadFile(r.lab.StateFile(f.Node))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes[f.Node].copies[f] = b
	return err
}

// stopped reports whether all threads of a process are stopped, or it has ended.
func stopped(pid int) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		if _, state, _ := bytes.Cut(b, []byte(") ")); len(state) == 0 || !strings.Contains("TtZX", string(state[:1])) {
			return false
		}
	}
	return true
}

// putBack replaces a state with a copy.
func (r *run) putBack(f plan.Fault) error {
	r.mu.Lock()
	b := r.nodes[f.Node].copies[f]
	r.mu.Unlock()
	if b == nil {
		return errors.New("there is no copy")
	}
	file := r.lab.StateFile(f.Node)
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) { // its disk may be full
		return err
	}
	return os.WriteFile(file, b, 0o600)
}
