package connmgr

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// drainText is what everybody is told.
const drainText = "the daemon of the host is being stopped"

// CloseAll takes the host out of service while Run goes on: there are no new groups
// and memberships, the groups of its applications end for all their members, and its
// memberships are given up, which their senders learn by the next beat.
// Applications are told. It returns when all
// that is done, as far as the others can be reached within seconds, or with ctx's
// error; what is left then ends with its leases. The next thing to do is to end Run.
func (m *Manager) CloseAll(ctx context.Context) error {
	m.mu.Lock()
	m.draining = true
	groups := slices.Collect(maps.Values(m.groups))
	members := len(m.memberships)
	for _, list := range m.memberships {
		for _, x := range slices.Clone(list) {
			m.gone.add(endedKey{x.ID, x.Formation}, drainText, m.clock.now())
			m.endMember(x, mcrdmav1.Detached_REASON_REMOVED, drainText)
		}
	}
	m.mu.Unlock()
	var all sync.WaitGroup
	for _, g := range groups {
		all.Go(func() {
			if !g.enterToEnd(ctx) {
				return
			}
			defer g.leave() // who is told may close it, but its members have been told why by then
			m.mu.Lock()
			if !g.over {
				m.tell(g, mcrdmav1.GroupChanged_TYPE_FAILED, netip.Addr{}, drainText)
			}
			m.mu.Unlock()
			m.dissolve(g, mcrdmav1.Detached_REASON_SENDER_LOST, drainText)
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
