package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/tests/chaos/orders"
	"github.com/mcrdma/mcrdma/tests/chaos/plan"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// open makes a host's application dial and listen.
func (r *run) open(ctx context.Context, h *host, m *lab.Member, life int) error {
	err := m.Do(ctx, orders.Open, orders.OpenArgs{Device: "softroce:" + h.Addr.String(), Socket: h.Socket, Dir: r.dir, Host: h.Name, Life: life}, nil)
	for _, g := range r.plan.Groups {
		if err == nil && slices.Contains(g.All(), h.Name) {
			err = m.Do(ctx, orders.Listen, orders.ListenArgs{Group: g}, nil)
		}
	}
	return err
}

// app returns the current application of a host, and its life; nil: none runs.
func (r *run) app(name string) (*lab.Member, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.hosts[name]
	if !h.Member.Running() {
		return nil, h.life
	}
	return h.Member, h.life
}

func (r *run) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf(format, args...))
}

// process returns the process that a fault affects, other than an application.
func (r *run) process(f plan.Fault) *lab.Process {
	switch f.What {
	case plan.KillDaemon, plan.StopDaemon, plan.WarpDaemon:
		return r.lab.Host(f.Node).Daemon
	case plan.KillSwitch, plan.StopSwitch:
		return r.lab.Switch(f.Node).Switch
	}
	if r.hosts[f.Node] != nil {
		return r.lab.Host(f.Node).Daemon
	}
	return r.lab.Switch(f.Node).Agent
}
