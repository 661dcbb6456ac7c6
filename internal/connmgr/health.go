package connmgr

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/health"
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

// judge acts on what has changed with the hosts of receivers. It is called with
// Manager.mu.
func (m *Manager) judge(now time.Time) {
	for _, c := range m.health.Tick(now) {
		m.act(c, now)
	}
}

func (m *Manager) act(c health.Change, now time.Time) {
	for _, g := range m.groups {
		if f := g.form(); f == nil || !f.Has(c.Addr) {
			continue
		}
		s, was := g.states.change(c, now)
		switch {
		case c.State == health.OK:
			g.happened("recovered", c.Addr, s.host, "it answers again")
			m.tell(g, mcrdmav1.GroupChanged_TYPE_RECOVERED, c.Addr, fmt.Sprintf("%s answers again", s.host))
		case c.State == health.Silent || c.State == health.Down && was == stateOK:
			g.happened("suspected", c.Addr, s.host, s.reason)
			m.tell(g, mcrdmav1.GroupChanged_TYPE_SUSPECTED, c.Addr, s.host+": "+s.reason)
		case c.State == health.Gone:
			silence := c.For.Round(time.Millisecond)
			why, reason := fmt.Sprintf("nothing was heard of its daemon for %v", silence), "silent"
			if was == stateDown {
				why, reason = fmt.Sprintf("its daemon has not run for %v", silence), "down"
			}
			m.lose(g, c.Addr, reason, why)
		}
	}
}

// patient is how long d is for hosts that are slower than usual.
func (m *Manager) patient(d time.Duration, among ...netip.Addr) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(float64(d) * m.health.Patience(among))
}

// answering is when each host was last seen to have answered something, in any group.
type answering struct {
	mu sync.Mutex
	at map[netip.Addr]time.Time
}

func (x *answering) note(hosts []netip.Addr, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, a := range hosts {
		x.at[a] = now
	}
}

func (x *answering) forget(host netip.Addr) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.at, host)
}

// without returns the hosts that have answered nothing since then.
func (x *answering) without(hosts []netip.Addr, then time.Time) []netip.Addr {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.DeleteFunc(hosts, func(a netip.Addr) bool { return x.at[a].After(then) })
}
