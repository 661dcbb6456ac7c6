package connmgr

import (
	"context"
	"net/netip"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	machine "github.com/mcrdma/mcrdma/internal/group"
)

// watch follows the receivers of a group, and stops following hosts that are in no group.
// It is called with Manager.mu.
func (m *Manager) watch(g *group, f *formation, now time.Time) {
	for _, r := range f.Receivers {
		m.health.Add(r.Addr, now)
		if s := g.states.get(r.Addr); s.state != stateOK || s.host != r.Host {
			g.states.set(r.Addr, memberState{host: r.Host, state: stateOK, since: now})
		}
		if _, err := m.peerLocked(r.Addr); err != nil {
			m.log.Error("no connection can be made", "host", r.Addr, "error", err)
		}
	}
	m.unwatch()
}

// unwatch ends following hosts that are in no group any longer. It is called with
// Manager.mu.
func (m *Manager) unwatch() {
	used := map[netip.Addr]bool{}
	for _, g := range m.groups {
		if f := g.form(); f != nil {
			for _, r := range f.Receivers {
				used[r.Addr] = true
			}
		}
	}
	for _, a := range m.health.Peers() {
		if !used[a] {
			m.health.Remove(a)
			m.moved.forget(a)
		}
	}
}

// groupOf returns a group of a session; nil: there is none.
func (m *Manager) groupOf(s *session, id groupID) *group {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.groups[id]; g != nil && g.sess == s {
		return g
	}
	return nil
}

// closeGroup ends a group as its application asks, if there is one.
func (m *Manager) closeGroup(s *session, id groupID) {
	if g := m.groupOf(s, id); g != nil {
		m.endGroup(g, machine.Ending{Reason: mcrdmav1.Detached_REASON_CLOSED})
	}
}

// endGroup ends a group everywhere. This stops other work on the group, and does not end with
// its caller. It returns when all have been told, or after a while.
func (m *Manager) endGroup(g *group, e machine.Ending) {
	_, _ = g.call(context.Background(), nil, func(s *machine.Sender, call uint64, now time.Time) { s.Close(call, e, now) })
}

// abandon ends a group whose application is gone. It may be called with Manager.mu.
func (m *Manager) abandon(g *group, reason mcrdmav1.Detached_Reason, why string) {
	g.post(func(s *machine.Sender, now time.Time) { s.Close(0, machine.Ending{Reason: reason, Text: why}, now) })
}
