package connmgr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/hostclock"
)

// A loss is why a receiver is to be taken out.
type loss struct {
	label string // of the metrics
	why   string
}

// lose has a receiver taken out of a group. It is called with Manager.mu.
func (m *Manager) lose(g *group, a netip.Addr, label, why string) {
	if g.over || g.form == nil || !g.form.has(a) || g.dead[a] != (loss{}) {
		return
	}
	g.dead[a] = loss{label, why}
	m.background(func(ctx context.Context) {
		if g.enter(ctx) != nil {
			return
		}
		defer g.leave()
		m.takeOut(ctx, g)
	})
}

// takeOut takes the lost receivers out of a group. The caller has its turn.
func (m *Manager) takeOut(ctx context.Context, g *group) {
	m.mu.Lock()
	f := g.form
	var lost, stay []receiver
	for _, r := range f.Receivers {
		if g.dead[r.Addr] == (loss{}) {
			stay = append(stay, r)
		} else {
			lost = append(lost, r)
		}
	}
	if g.over || g.broken || len(lost) == 0 {
		m.mu.Unlock()
		return
	}
	first := g.dead[lost[0].Addr].why
	switch {
	case !g.enough(len(stay)):
		m.mu.Unlock()
		m.fail(g, fmt.Sprintf("%s: %s; %s", lost[0].Host, first, g.few(len(stay))))
		return
	case f.Path != mcrdmav1.Path_PATH_SWITCH:
		m.breakUp(g, lost[0].Addr, fmt.Sprintf("%s: %s", lost[0].Host, first))
		m.mu.Unlock()
		return
	}
	before := g.departures
	for _, r := range lost {
		m.depart(g, departure{Addr: r.Addr, Host: r.Host, Why: g.dead[r.Addr].why, Since: hostclock.Now(), Clock: hostclock.Name()})
	}
	m.mu.Unlock()
	next := *f
	next.Receivers = stay
	// From the update on they may lack something, even if this daemon ends: so its state
	// says so first.
	err := m.record(ctx, g, f, nil)
	if err != nil {
		m.mu.Lock()
		g.departures = before
		m.mu.Unlock()
	} else if err = errNoAgent; m.tor != nil {
		err = m.tor.update(ctx, g, &next)
	}
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.breakUp(g, lost[0].Addr, fmt.Sprintf("%s: %s; the group cannot go on without it: %v", lost[0].Host, first, err))
		return
	}
	gone := make([]netip.Addr, 0, len(lost))
	m.mu.Lock()
	g.form = &next
	for _, r := range lost {
		m.removed(g, r.Addr)
		gone = append(gone, r.Addr)
	}
	m.unwatch(nil)
	m.mu.Unlock()
	m.startCleanup(m.cleanupOf(g, mcrdmav1.Detached_REASON_REMOVED, first, gone))
	if err := m.record(ctx, g, &next, nil); err != nil && ctx.Err() == nil {
		m.log.Error("a receiver has left a group, but not in the daemon's state", "group", g.id, "error", err)
	}
	m.retree(ctx, g, false)
}

// A departure is a receiver that was, or is being, taken out of a group.
type departure struct {
	Addr netip.Addr
	Host string
	Why  string
	// Since is when the switches may have begun to go on without it, in µs by the clock of
	// package hostclock that has this name; 0: it was not in the next formation.
	Since int64
	Clock string `json:",omitempty"`
}

// depart notes a departure, unless there is an earlier one. The caller has the
// group's turn and Manager.mu.
func (m *Manager) depart(g *group, d departure) {
	if g.departed(d.Addr) == nil {
		g.departures = append(g.departures, d)
	}
}

// departed finds a departure; nil: there is none.
func (g *group) departed(a netip.Addr) *departure {
	for i := range g.departures {
		if g.departures[i].Addr == a {
			return &g.departures[i]
		}
	}
	return nil
}

// removed records that a receiver is out of a group, for the reason in dead, and tells the
// application. It is called with Manager.mu.
func (m *Manager) removed(g *group, a netip.Addr) {
	l := g.dead[a]
	delete(g.dead, a)
	delete(g.suspected, a)
	s := g.states[a]
	if s == nil {
		s = &peerState{host: a.String()}
		g.states[a] = s
	}
	s.state, s.reason, s.since = stateRemoved, l.why, m.clock.now()
	m.depart(g, departure{Addr: a, Host: s.host, Why: l.why})
	m.metrics.removed.WithLabelValues(l.label).Inc()
	m.tell(g, mcrdmav1.GroupChanged_TYPE_REMOVED, a, fmt.Sprintf("%s: %s", s.host, l.why))
	m.log.Info("a receiver was taken out", "group", g.id, "host", s.host, "why", l.why)
}

// breakUp asks the application to form a group anew. It is called with Manager.mu.
func (m *Manager) breakUp(g *group, a netip.Addr, text string) {
	if g.over || g.broken || g.form == nil {
		return
	}
	g.broken = true
	m.tell(g, mcrdmav1.GroupChanged_TYPE_REFORM, a, text)
	m.log.Info("a group is to be formed anew", "group", g.id, "why", text)
}

// fail ends a group that has too few receivers. The caller has its turn.
func (m *Manager) fail(g *group, text string) {
	m.mu.Lock()
	if !g.over {
		g.sess.noteEnd(end{group: g.id, why: refuse(MinSize, "%s", text)})
		m.tell(g, mcrdmav1.GroupChanged_TYPE_FAILED, netip.Addr{}, text)
	}
	m.mu.Unlock()
	m.dissolve(g, mcrdmav1.Detached_REASON_REMOVED, "the group has failed: "+text)
}

// retree asks how the switch copies a group's packets now. If tells is set, it tells the
// application when the known tree has changed. The caller has the group's turn.
func (m *Manager) retree(ctx context.Context, g *group, tells bool) {
	f := *g.form
	steps := m.steps(ctx, &f)
	if len(steps) == 0 {
		return
	}
	was := f.tree // without its steps, it is one line
	m.describeTree(&f, steps)
	m.mu.Lock()
	defer m.mu.Unlock()
	if g.over || slices.Equal(was, f.tree) {
		return
	}
	g.form = &f
	if tells && len(was) > 1 {
		m.tell(g, mcrdmav1.GroupChanged_TYPE_ROUTE, netip.Addr{}, "the way to the receivers has changed")
	}
}
