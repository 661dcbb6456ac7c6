package connmgr

import (
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// due does what is due at now: beats, leases, and the end of grace.
func (m *Manager) due(now time.Time) {
	m.beat(now)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.judge(now)
	m.expire(now)
	m.closeIdle(now)
	m.dueAtSwitch(now)
}

// expire ends memberships whose sender is silent, and groups and memberships that no
// application has come back for. It is called with Manager.mu.
func (m *Manager) expire(now time.Time) {
	for _, list := range m.memberships {
		for _, x := range slices.Clone(list) {
			if now.After(x.expires) {
				m.endMember(x, mcrdmav1.Detached_REASON_SENDER_LOST, "nothing was heard of the sender's daemon for "+x.Lease.String())
			}
		}
	}
	if now.Sub(m.started) < m.cfg.Beat.Grace {
		return
	}
	const why = "its application has not come back after the daemon's restart"
	for _, list := range m.memberships {
		for _, x := range slices.Clone(list) {
			if !x.resumed {
				m.endMember(x, mcrdmav1.Detached_REASON_UNSPECIFIED, why)
			}
		}
	}
	for _, g := range m.groups {
		if !g.resumed {
			g.resumed = true
			m.abandon(g, mcrdmav1.Detached_REASON_SENDER_LOST, why)
		}
	}
	for _, s := range m.sessions {
		if s.stream == 0 {
			m.endSessionLocked(s, why)
		}
	}
}
