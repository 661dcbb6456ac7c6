package osdmap

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Watch sends what there is, and again whenever that has changed, until ctx ends; then it closes the
// channel. Who reads slowly gets the newest state and not those between. The epoch of a volume never
// goes back. While the store is away, the last state comes with Away.
func (m *Manager) Watch(ctx context.Context) <-chan State {
	out := make(chan State, 1)
	go func() {
		defer close(out)
		m.watch(ctx, out)
	}()
	return out
}

// watch reads everything each time that something has changed: changes are rare, records few, and
// then nothing is to be said about compaction, or a connection that ends.
func (m *Manager) watch(ctx context.Context, out chan State) {
	var last State
	for ctx.Err() == nil {
		s, revision, err := m.read(ctx)
		if err == nil {
			s.keepNewest(&last)
			send(out, s)
			last = s
			err = m.wait(ctx, revision)
		}
		if err != nil && ctx.Err() == nil {
			last.Away = err
			send(out, last)
			select {
			case <-ctx.Done():
			case <-time.After(m.o.Retry):
			}
		}
	}
}

// wait returns when something may have changed, or a refresh is due.
func (m *Manager) wait(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, m.o.Refresh)
	defer cancel()
	err := m.kv.Wait(ctx, revision)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil
	}
	return m.away(err)
}

// keepNewest keeps maps from going back, as those of a store do that was restored from a copy.
func (s *State) keepNewest(last *State) {
	for i := range s.Volumes {
		v := &s.Volumes[i]
		was := last.Volume(v.Volume.ID)
		if was != nil && was.Map.Epoch > v.Map.Epoch {
			s.Faults = append(s.Faults, fmt.Errorf("osdmap: volume %s: %w: the store has epoch %d and had epoch %d before; it lost changes, as by an old backup: stop the hosts, and restore a newer one",
				v.Volume.Name, ErrDamaged, v.Map.Epoch, was.Map.Epoch))
			*v = *was
		}
	}
}

// send replaces what has not been read.
func send(out chan State, s State) {
	select {
	case <-out:
	default:
	}
	out <- s
}
