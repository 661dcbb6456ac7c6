package main

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// kills are the processes that faults kill. Each stays down until all faults that killed it have
// ended.
type kills struct {
	mu sync.Mutex
	of map[*lab.Process]*victim
}

type victim struct {
	faults   atomic.Int32 // that keep it down
	starting sync.Mutex
}

func (k *kills) victim(p *lab.Process) *victim {
	k.mu.Lock()
	defer k.mu.Unlock()
	v := k.of[p]
	if v == nil {
		v = &victim{}
		if k.of == nil {
			k.of = map[*lab.Process]*victim{}
		}
		k.of[p] = v
	}
	return v
}

// down kills processes at the same time. When it returns, none of them runs.
func (k *kills) down(list ...*lab.Process) {
	for _, p := range list {
		k.victim(p).faults.Add(1)
		p.Signal(unix.SIGKILL)
	}
	for _, p := range list {
		v := k.victim(p)
		for p.Kill(); !v.starting.TryLock(); p.Kill() { // the signal may have come too early for a start
			time.Sleep(10 * time.Millisecond)
		}
		p.Kill()
		v.starting.Unlock()
	}
}

// up ends a fault for a process, and starts the process if that was the last fault. If another
// fault kills it before it is ready, the end of that fault starts it.
func (k *kills) up(p *lab.Process, start func() error) error {
	v := k.victim(p)
	v.faults.Add(-1)
	v.starting.Lock()
	defer v.starting.Unlock()
	if v.faults.Load() > 0 || p.Running() {
		return nil
	}
	err := start()
	if v.faults.Load() > 0 {
		return nil
	}
	return err
}
