package connmgr

import (
	"context"
	"net/netip"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// formed makes a formation the group's present one, unless the caller no longer waits for
// it.
func (m *Manager) formed(ctx context.Context, g *group, f *formation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if g.over || g.sess.over {
		return refuse(Closed, "the group has been closed meanwhile")
	}
	now := m.clock.now()
	g.form, g.broken, g.problems, g.since, g.late = f, false, nil, time.Time{}, 0
	g.retry.plan(f, now)
	clear(g.dead)
	g.looks = &looks{}
	for _, r := range f.Receivers {
		if s := g.states[r.Addr]; s == nil || s.state != stateOK || s.host != r.Host {
			g.states[r.Addr] = &peerState{host: r.Host, state: stateOK, since: now}
		}
	}
	m.watch(g, now)
	if s := g.news; s != nil && f.Path == mcrdmav1.Path_PATH_SWITCH {
		m.heard(g, s)
	}
	g.making, g.news = 0, nil
	return nil
}

// watch follows the receivers of a group, and stops following hosts that are in no group.
// It is called with Manager.mu.
func (m *Manager) watch(g *group, now time.Time) {
	for _, r := range g.form.Receivers {
		m.health.Add(r.Addr, now)
	}
	m.unwatch(nil)
}

// unwatch ends following hosts that are in no group any longer. It is called with
// Manager.mu.
func (m *Manager) unwatch(without *group) {
	used := map[netip.Addr]bool{}
	for _, g := range m.groups {
		if g.form != nil && g != without {
			for _, r := range g.form.Receivers {
				used[r.Addr] = true
			}
		}
	}
	for _, a := range m.health.Peers() {
		if !used[a] {
			m.health.Remove(a)
		}
	}
}

// closeGroup ends a group as its application asks.
func (m *Manager) closeGroup(ctx context.Context, s *session, id groupID) error {
	m.mu.Lock()
	g := s.groups[id]
	m.mu.Unlock()
	if g == nil {
		return nil
	}
	// This stops other work on the group, and does not end with its caller.
	m.endGroup(context.WithoutCancel(ctx), g, mcrdmav1.Detached_REASON_CLOSED, "")
	return nil
}

// abandon ends a group whose application is gone. It is called with Manager.mu.
func (m *Manager) abandon(g *group, reason mcrdmav1.Detached_Reason, why string) {
	if g.over {
		return
	}
	m.background(func(ctx context.Context) { m.endGroup(ctx, g, reason, why) })
}

// endGroup ends a group everywhere.
func (m *Manager) endGroup(ctx context.Context, g *group, reason mcrdmav1.Detached_Reason, why string) {
	if g.enterToEnd(ctx) {
		defer g.leave()
		m.dissolve(g, reason, why)
	}
}

// dissolve ends a group everywhere; the caller has its turn.
func (m *Manager) dissolve(g *group, reason mcrdmav1.Detached_Reason, why string) {
	m.mu.Lock()
	over, f := g.over, g.form
	m.mu.Unlock()
	if over {
		return
	}
	m.leaveGroup(g)
	if f == nil {
		return // the goroutine that was forming it has undone that
	}
	edit := groupEdit(g.id.number, nil)
	d := m.cleanupOf(g, reason, why, f.addrs())
	d.mcID, d.record = f.MCID, &edit
	d.installed = f.Path == mcrdmav1.Path_PATH_SWITCH
	m.cleanUp(d)
	m.log.Info("a group has ended", "group", g.id, "reason", reason, "why", why)
}

// cleanupOf returns the cleanup that drops all memberships of some hosts in a group.
func (m *Manager) cleanupOf(g *group, reason mcrdmav1.Detached_Reason, why string, addrs []netip.Addr) *cleanup {
	return m.cleanupTo(g.id, 0, addrs, reason, why)
}

// cleanupTo returns the cleanup that drops the memberships of some hosts in a formation, or
// (0) in all.
func (m *Manager) cleanupTo(id groupID, formation uint32, addrs []netip.Addr, reason mcrdmav1.Detached_Reason, why string) *cleanup {
	d := &cleanup{drops: map[*peer]*mcrdmav1.DropRequest{}}
	for _, a := range addrs {
		p, err := m.peerAt(a)
		if err != nil {
			continue // its lease ends the membership
		}
		m.letPeer(p)
		d.drops[p] = &mcrdmav1.DropRequest{Group: id.proto(), Formation: formation, Address: a.String(), Reason: reason, Text: clip(why, maxText)}
	}
	return d
}
