package connmgr

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	machine "github.com/mcrdma/mcrdma/internal/group"
)

// groupOf returns a group of a session; nil: there is none.
func (m *Manager) groupOf(s *session, id groupID) *group {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.groups[id]; g != nil && g.sess == s {
		return g
	}
	return nil
}

// closeGroup ends a group as its application asks, if there is one. failed says why it cannot go on;
// "": the application closes it.
func (m *Manager) closeGroup(s *session, id groupID, failed string) {
	g := m.groupOf(s, id)
	switch {
	case g == nil:
	case failed != "":
		m.endGroup(g, machine.Ending{Reason: mcrdmav1.Detached_REASON_SENDER_LOST, Text: "its group has failed: " + failed})
	default:
		m.endGroup(g, machine.Ending{Reason: mcrdmav1.Detached_REASON_CLOSED})
	}
}

// endGroup ends a group everywhere. This stops other work on the group, and continues if its caller
// leaves. It returns when all have been told, or after a while.
func (m *Manager) endGroup(g *group, e machine.Ending) {
	_, _ = g.call(context.Background(), func(s *machine.Sender, call uint64, now time.Time) { s.Close(call, e, now) })
}

// abandon ends a group whose application is gone. It may be called with Manager.mu.
func (m *Manager) abandon(g *group, reason mcrdmav1.Detached_Reason, why string) {
	g.post(func(s *machine.Sender, now time.Time) { s.Close(0, machine.Ending{Reason: reason, Text: why}, now) })
}

// drainText is the reason that applications and members get.
const drainText = "the daemon of the host is being stopped"

// CloseAll takes the host out of service while Run continues: it accepts no new groups and
// memberships, ends the groups of its applications for all their members, and ends its memberships,
// of which it tells their senders at once. Applications are notified. It returns when all that is
// done, as far as the other hosts can be reached within seconds, or with ctx's error; the rest
// expires with its leases. The caller then ends Run.
func (m *Manager) CloseAll(ctx context.Context) error {
	m.mu.Lock()
	m.draining = true
	groups := slices.Collect(maps.Values(m.groups))
	m.mu.Unlock()
	members := m.members.stop(drainText)
	var all sync.WaitGroup
	for _, g := range groups {
		all.Go(func() {
			m.endGroup(g, machine.Ending{Reason: mcrdmav1.Detached_REASON_SENDER_LOST, Text: drainText, Failed: drainText,
				Cause: mcrdmav1.Reason_SENDER_LOST})
		})
	}
	if members > 0 {
		beats := time.NewTimer(3 * m.cfg.Beat.Interval)
		defer beats.Stop()
		select {
		case <-beats.C:
		case <-ctx.Done():
		}
	}
	all.Wait()
	return ctx.Err()
}

// endSession ends a session and all that belongs to it, if the stream that reads wake (nil: no stream) still has it.
func (m *Manager) endSession(s *session, wake chan struct{}, why string) {
	if m.life.Err() == nil && s.finish(wake) {
		m.sessionOver(s, why)
	}
}

// sessionOver ends all that belongs to a session that has ended.
func (m *Manager) sessionOver(s *session, why string) {
	m.sessions.remove(s)
	m.members.sessionEnded(s.token, why)
	m.mu.Lock()
	for _, g := range m.groups {
		if g.sess == s {
			m.abandon(g, mcrdmav1.Detached_REASON_SENDER_LOST, why)
		}
	}
	m.mu.Unlock()
	r := s.record()
	m.log.Info("a session has ended", "program", r.Program, "pid", r.PID, "why", why)
}
