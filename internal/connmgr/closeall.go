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

// drainText is the reason that applications and members get.
const drainText = "the daemon of the host is being stopped"

// CloseAll takes the host out of service while Run goes on: it accepts no new groups and
// memberships, ends the groups of its applications for all their members, and gives up its
// memberships, which their senders learn by the next beat. Applications are notified. It
// returns when all that is done, as far as the other hosts can be reached within seconds,
// or with ctx's error; what is left then ends with its leases. The caller then ends Run.
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
