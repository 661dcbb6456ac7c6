// Package osdmaptest has a configuration store in memory, one with faults, and a conformance test
// for stores. Only tests may import it.
package osdmaptest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// A KV is an [osdmap.KV] that several managers may share, one for each host of a test. Goroutines
// that wait in it wait on channels, so that it can be used in a bubble of testing/synctest.
type KV struct {
	mu       sync.Mutex
	revision int64
	pairs    map[string]osdmap.Pair
	changed  chan struct{} // closed by the next change
}

// New makes an empty store.
func New() *KV { return &KV{pairs: map[string]osdmap.Pair{}, changed: make(chan struct{})} }

// Get implements [osdmap.KV].
func (k *KV) Get(ctx context.Context, prefix string) (found []osdmap.Pair, revision int64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(k.pairs)) {
		if strings.HasPrefix(key, prefix) {
			found = append(found, k.pairs[key])
		}
	}
	return found, k.revision, nil
}

// Commit implements [osdmap.KV].
func (k *KV) Commit(ctx context.Context, changes ...osdmap.Change) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range changes {
		if k.pairs[c.Key].Revision != c.Revision {
			return false, nil
		}
	}
	k.revision++
	for _, c := range changes {
		if c.Value == nil {
			delete(k.pairs, c.Key)
		} else {
			k.pairs[c.Key] = osdmap.Pair{Key: c.Key, Value: bytes.Clone(c.Value), Revision: k.revision}
		}
	}
	close(k.changed)
	k.changed = make(chan struct{})
	return true, nil
}

// Wait implements [osdmap.KV].
func (k *KV) Wait(ctx context.Context, after int64) error {
	k.mu.Lock()
	revision, changed := k.revision, k.changed
	k.mu.Unlock()
	if revision > after {
		return nil
	}
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
