package connmgr

import (
	"context"
	"sync"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/store"
)

// A cleanup is what must be undone elsewhere.
type cleanup struct {
	mcID      uint32 // freed when all is undone; 0: none
	installed bool   // the switches may have a group with it
	drops     map[*peer]*mcrdmav1.DropRequest
	record    *store.Edit // of the state, when all is undone; nil: none
}

// cleanUp undoes all of it. It returns when that is done, or after a while, and then goes
// on in the background. A host that cannot be reached for longer than a lease is left to
// the lease, and switches to the next check of their groups.
func (m *Manager) cleanUp(d *cleanup) {
	t := time.NewTimer(m.times.undo)
	defer t.Stop()
	select {
	case <-m.startCleanup(d):
	case <-t.C:
	}
}

// startCleanup undoes all of it, and does not wait for that. done is closed at the end.
func (m *Manager) startCleanup(d *cleanup) (done chan struct{}) {
	done = make(chan struct{})
	m.mu.Lock()
	for p := range d.drops {
		p.users++
	}
	if d.mcID != 0 {
		m.mcInUse[d.mcID] = false
	}
	m.mu.Unlock()
	m.background(func(ctx context.Context) {
		defer close(done)
		var wg sync.WaitGroup
		if d.installed && m.tor != nil {
			wg.Go(func() {
				m.retryUntil(ctx, m.cfg.Leases.Group, func(ctx context.Context) error { return m.tor.remove(ctx, m.addr, d.mcID) })
			})
		}
		for p, req := range d.drops {
			wg.Go(func() {
				defer m.letPeer(p)
				m.retryUntil(ctx, m.cfg.Leases.Member, func(ctx context.Context) error {
					return p.call(ctx, func(ctx context.Context) error {
						_, err := p.rpc.Drop(ctx, req)
						return err
					})
				})
			})
		}
		wg.Wait()
		if ctx.Err() != nil {
			return // after a restart, the record has it swept
		}
		if d.record != nil {
			if err := m.store.Commit(ctx, *d.record); err != nil {
				m.log.Error("a group is gone, but not from the daemon's state", "error", err)
			}
		}
		if d.mcID != 0 {
			m.freeMCID(d.mcID)
		}
	})
	return done
}

// retryUntil calls f until it succeeds, but for no longer than most.
func (m *Manager) retryUntil(ctx context.Context, most time.Duration, f func(context.Context) error) {
	for begun := time.Now(); ; {
		one, cancel := context.WithTimeout(ctx, m.times.undo)
		err := f(one)
		cancel()
		if err == nil || ctx.Err() != nil || time.Since(begun) > most {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(m.times.again):
		}
	}
}
