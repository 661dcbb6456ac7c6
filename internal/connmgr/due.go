package connmgr

import (
	"time"
)

// due does what is due at now: beats, leases, and the end of grace.
func (m *Manager) due(now time.Time) {
	m.beat(now)
	graceOver := now.Sub(m.started) >= m.cfg.Beat.Grace
	m.members.tick(graceOver)
	if graceOver {
		m.graceOver()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.judge(now)
	m.closeIdle(now)
	m.dueAtSwitch(now)
}

// graceOver ends the sessions that no application has come back for.
func (m *Manager) graceOver() {
	const why = "its application has not come back after the daemon's restart"
	for _, s := range m.sessions.all() {
		m.endSession(s, 0, why)
	}
}
