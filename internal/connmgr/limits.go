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
