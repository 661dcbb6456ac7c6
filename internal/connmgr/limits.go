package connmgr

import (
	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// roomForGroup says whether a user may have one more group. It is called with Manager.mu.
func (m *Manager) roomForGroup(uid uint32) error {
	if len(m.groups) >= m.cfg.Limits.Groups {
		return failure.New(mcrdmav1.Reason_LIMIT, "this host has %d groups, and its daemon is configured to allow no more: close some, or raise limits.groups", len(m.groups))
	}
	n := 0
	for _, g := range m.groups {
		if g.sess.uid == uid {
			n++
		}
	}
	if n >= m.cfg.Limits.GroupsPerUser {
		return failure.New(mcrdmav1.Reason_LIMIT, "user %d has %d groups, and is allowed no more: close some, or raise limits.groups_per_user", uid, n)
	}
	return nil
}

// Limits on concurrent work for callers.
const (
	maxStreams     = 1024 // calls per connection of another host; the caller queues more
	maxHostConns   = 8    // connections of another host; its daemon has one
	maxUserConns   = 2048 // connections of a user of this host: more than maxSessions
	maxCreating    = 32   // groups that a session makes
	maxCreatingAll = 128  // the same, of all sessions
	maxIdlePeers   = 64   // connections to hosts that are not configured, for groups to come
)

// mayCreate refuses, or counts a group that a session is creating until leave is called.
func (m *Manager) mayCreate(s *session) (leave func(), err error) {
	if !s.creating.TryAcquire(1) {
		return nil, failure.New(mcrdmav1.Reason_LIMIT, "the application makes %d groups at the same time, and is allowed no more: wait for some", maxCreating)
	}
	if !m.creating.TryAcquire(1) {
		s.creating.Release(1)
		return nil, failure.New(mcrdmav1.Reason_LIMIT, "the applications of this host make %d groups at the same time, and no more are allowed: try again later", maxCreatingAll)
	}
	return func() {
		m.creating.Release(1)
		s.creating.Release(1)
	}, nil
}
