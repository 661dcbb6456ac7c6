package connmgr

import "net/netip"

// usage is what a user's applications use.
type usage struct {
	groups, memberships int
	memory              uint64
}

// use changes a user's usage. It is called with Manager.mu.
func (m *Manager) use(uid uint32, f func(*usage)) {
	u := m.usage[uid]
	if u == nil {
		u = &usage{}
		m.usage[uid] = u
	}
	if f(u); *u == (usage{}) {
		delete(m.usage, uid)
	}
}

// takeGroup counts a group of a user, if limits allow. It is called with Manager.mu.
func (m *Manager) takeGroup(uid uint32) error {
	if len(m.groups) >= m.cfg.Limits.Groups {
		return refuse(Limit, "this host has %d groups, and its daemon is configured to allow no more: close some, or raise limits.groups", len(m.groups))
	}
	if u := m.usage[uid]; u != nil && u.groups >= m.cfg.Limits.GroupsPerUser {
		return refuse(Limit, "user %d has %d groups, and is allowed no more: close some, or raise limits.groups_per_user", uid, u.groups)
	}
	m.use(uid, func(u *usage) { u.groups++ })
	return nil
}

// giveGroup is called with Manager.mu.
func (m *Manager) giveGroup(uid uint32) { m.use(uid, func(u *usage) { u.groups-- }) }

// maxSessions is how many applications of one user may be there at a time.
const maxSessions = 1024

// roomForSession is called with Manager.mu.
func (m *Manager) roomForSession(uid uint32) error {
	n := 0
	for _, s := range m.sessions {
		if s.user.uid == uid {
			n++
		}
	}
	if n >= maxSessions {
		return refuse(Limit, "user %d has %d sessions, and is allowed no more: end some", uid, n)
	}
	return nil
}

// roomForSender says whether a sender may have one more group in which this host
// receives, so that no sender takes all the room there is. It is called with
// Manager.mu.
func (m *Manager) roomForSender(sender netip.Addr) error {
	n := 0
	for id := range m.memberships {
		if id.source == sender {
			n++
		}
	}
	if n >= m.cfg.Limits.PerSender {
		return refuse(Limit, "its applications are in %d groups of this sender, and its daemon is configured to allow no more: close some, or raise limits.memberships_per_sender there", n)
	}
	return nil
}

// takeMembership counts the membership of a user's application in a group, if
// limits allow. It is called with Manager.mu.
func (m *Manager) takeMembership(uid uint32, memory uint64) error {
	if len(m.memberships) >= m.cfg.Limits.Memberships {
		return refuse(Limit, "its applications are in %d groups, and its daemon is configured to allow no more: raise limits.memberships", len(m.memberships))
	}
	used := uint64(0)
	if u := m.usage[uid]; u != nil {
		used = u.memory
	}
	if most := m.cfg.Limits.Memory; most > 0 && (memory > most || used > most-memory) {
		return refuse(Limit, "the regions take %d bytes, user %d has given %d, and is allowed %d: ask for less, or raise limits.memory there",
			memory, uid, used, most)
	}
	m.use(uid, func(u *usage) { u.memberships++; u.memory += memory })
	return nil
}

// giveMembership is called with Manager.mu.
func (m *Manager) giveMembership(uid uint32, memory uint64) {
	m.use(uid, func(u *usage) { u.memberships--; u.memory -= memory })
}
