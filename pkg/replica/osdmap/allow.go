package osdmap

import (
	"context"
	"fmt"
	"slices"
)

// Allow replaces the list of the clients that may open a volume; none: all that may connect. It changes
// nothing else of the volume.
func (m *Manager) Allow(ctx context.Context, volume uint64, clients []string) (Volume, error) {
	for {
		v, revision, err := m.volume(ctx, volume)
		if err != nil {
			return Volume{}, err
		}
		if slices.Equal(v.Volume.Allow, clients) {
			return v.Volume, nil
		}
		v.Volume.Allow = clients
		if err := v.Volume.Check(); err != nil {
			return Volume{}, fmt.Errorf("osdmap: %w", err)
		}
		if ok, err := m.commit(ctx, Change{volumeKey(volume), ofVolume(v.Volume, v.Map), revision}); ok || err != nil {
			return v.Volume, err
		}
	}
}
