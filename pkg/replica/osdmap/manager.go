package osdmap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// A KV is the store below: linearizable, with revisions that rise with each change. Its errors say
// what to do; a call may have taken effect although it failed. It has to end when ctx does.
type KV interface {
	// Get returns the pairs whose keys begin with prefix, and the store's revision. It sees all
	// changes that were complete when it was called.
	Get(ctx context.Context, prefix string) (pairs []Pair, revision int64, err error)
	// Commit makes all changes, or none if one of the keys is not as its change has it; ok says which.
	Commit(ctx context.Context, changes ...Change) (ok bool, err error)
	// Wait returns nil when a key may have changed after a revision. It fails when it cannot know.
	Wait(ctx context.Context, after int64) error
}

// A Pair is a key, its value, and the revision in which it was last changed.
type Pair struct {
	Key      string
	Value    []byte
	Revision int64
}

// A Change sets a key that was last changed in Revision; 0: there is no such key. Without a Value it
// removes the key.
type Change struct {
	Key      string
	Value    []byte
	Revision int64
}

// Options are how long the manager waits.
type Options struct {
	Timeout time.Duration // of a call; default 5 s
	Retry   time.Duration // between tries of Watch while the store is away; default 1 s
	Refresh time.Duration // after which Watch reads all, changed or not; default 30 s
}

// A Manager reads and changes the configuration. It may be used by several goroutines.
type Manager struct {
	kv    KV
	o     Options
	reads reads
}

// New makes a manager above a store.
func New(kv KV, o Options) *Manager {
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	o.Retry = cmp.Or(o.Retry, time.Second)
	o.Refresh = cmp.Or(o.Refresh, 30*time.Second)
	m := &Manager{kv: kv, o: o}
	m.reads.get = m.get
	return m
}

func (m *Manager) get(ctx context.Context, prefix string) ([]Pair, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	pairs, revision, err := m.kv.Get(ctx, prefix)
	return pairs, revision, m.away(err)
}

func (m *Manager) commit(ctx context.Context, changes ...Change) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	ok, err := m.kv.Commit(ctx, changes...)
	return ok, m.away(err)
}

func (m *Manager) away(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("osdmap: %w: %w; volumes go on with their current maps, and changes wait (of the primary or the acting set, volumes created or deleted): if it does not answer, start the missing members of etcd, of which more than half must run, or repair the network between them and this host",
		ErrAway, err)
}

// Read returns all that there is.
func (m *Manager) Read(ctx context.Context) (State, error) {
	s, _, err := m.read(ctx)
	return s, err
}

func (m *Manager) read(ctx context.Context) (s State, revision int64, err error) {
	pairs, revision, err := m.get(ctx, "")
	if err != nil {
		return State{}, 0, err
	}
	for _, p := range pairs {
		var err error
		switch {
		case isHost(p.Key):
			var h Host
			if h, err = parseHost(p.Key, p.Value); err == nil {
				s.Hosts = append(s.Hosts, h)
			}
		case isVolume(p.Key):
			var v VolumeState
			if v, err = parseVolume(p.Key, p.Value); err == nil {
				s.Volumes = append(s.Volumes, v)
			}
		case strings.HasPrefix(p.Key, deletedPrefix):
			var id uint64
			if id, err = strconv.ParseUint(strings.TrimPrefix(p.Key, deletedPrefix), 16, 64); err == nil {
				s.Deleted = append(s.Deleted, id)
			} else {
				err = fmt.Errorf("osdmap: record %q: %w", p.Key, damaged(err))
			}
		}
		if err != nil {
			s.Faults = append(s.Faults, err)
		}
	}
	slices.SortFunc(s.Hosts, func(a, b Host) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(s.Volumes, func(a, b VolumeState) int { return cmp.Compare(a.Volume.ID, b.Volume.ID) })
	return s, revision, nil
}

// PutHost writes a host's record. Another host of that number or name is ErrExists.
func (m *Manager) PutHost(ctx context.Context, h Host) error {
	if err := h.Check(); err != nil {
		return fmt.Errorf("osdmap: %w", err)
	}
	for {
		pairs, _, err := m.get(ctx, hostPrefix)
		if err != nil {
			return err
		}
		c := Change{Key: hostKey(h.ID), Value: ofHost(h)}
		for _, p := range pairs {
			x, err := parseHost(p.Key, p.Value)
			switch {
			case err != nil && p.Key == c.Key:
				return err
			case err != nil:
			case x == h:
				return nil
			case x.ID == h.ID && x.Name == h.Name:
				c.Revision = p.Revision
			default:
				if err := h.Beside(x); err != nil {
					return fmt.Errorf("osdmap: %w", err)
				}
			}
		}
		if ok, err := m.commit(ctx, c); ok || err != nil {
			return err
		}
	}
}

// Create makes a volume with its first map. Another volume of that name or number is ErrExists.
func (m *Manager) Create(ctx context.Context, v Volume, first core.Map) error {
	if err := cmp.Or(v.Check(), v.CheckMap(first)); err != nil {
		return fmt.Errorf("osdmap: %w", err)
	}
	v.Created = v.Created.UTC().Round(0)
	ok, err := m.commit(ctx, Change{Key: volumeKey(v.ID), Value: ofVolume(v, first)},
		Change{Key: nameKey(v.Name), Value: nameRecord(v.ID)})
	if ok || err != nil {
		return err
	}
	if have, _, err := m.volume(ctx, v.ID); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	} else if err == nil && have.Volume.Name == v.Name {
		return nil // this call was made before: the number is drawn at random
	}
	return fmt.Errorf("osdmap: volume %s: %w: choose another name, or delete it", v.Name, ErrExists)
}

// Delete removes a volume, and leaves a record that it was deleted: by that the hosts drop their copies, and
// not because there is none of the volume. That there is none is no error.
func (m *Manager) Delete(ctx context.Context, id uint64) error {
	for {
		pairs, _, err := m.get(ctx, "")
		if err != nil {
			return err
		}
		var cs []Change
		for _, p := range pairs {
			if p.Key == volumeKey(id) || strings.HasPrefix(p.Key, namePrefix) && string(p.Value) == string(nameRecord(id)) {
				cs = append(cs, Change{Key: p.Key, Revision: p.Revision})
			}
		}
		if len(cs) == 0 {
			return nil
		}
		if ok, err := m.commit(ctx, append(cs, Change{Key: deletedKey(id), Value: nameRecord(id)})...); ok || err != nil {
			return err
		}
	}
}

func (m *Manager) volume(ctx context.Context, id uint64) (VolumeState, int64, error) {
	r := m.reads.join(id)
	defer m.reads.leave(r)
	select {
	case <-r.done:
	case <-ctx.Done():
		return VolumeState{}, 0, m.away(ctx.Err())
	}
	if r.err != nil {
		return VolumeState{}, 0, r.err
	}
	i := slices.IndexFunc(r.pairs, func(p Pair) bool { return p.Key == volumeKey(id) })
	if i < 0 {
		return VolumeState{}, 0, fmt.Errorf("osdmap: volume %016x: %w", id, ErrNotFound)
	}
	v, err := parseVolume(r.pairs[i].Key, r.pairs[i].Value)
	return v, r.pairs[i].Revision, err
}

// Map returns the present map of a volume.
func (m *Manager) Map(ctx context.Context, volume uint64) (core.Map, error) {
	v, _, err := m.volume(ctx, volume)
	return v.Map, err
}

// Propose replaces the map of a volume if the present one's epoch is one less, and returns the one
// that is there then: the proposal has won if it is that. The volume's hosts stay as they are. If it
// fails, the proposal may have been written all the same, or be written later, unless another has
// been; the same call made again tells.
func (m *Manager) Propose(ctx context.Context, volume uint64, next core.Map) (core.Map, error) {
	next.Up = nil
	return m.Change(ctx, volume, next)
}

// Change is Propose for an operator, whose map has the volume's hosts too.
func (m *Manager) Change(ctx context.Context, volume uint64, next core.Map) (core.Map, error) {
	hosts := next.Up
	for {
		v, revision, err := m.volume(ctx, volume)
		if err != nil {
			return core.Map{}, err
		}
		now := v.Map
		if hosts != nil {
			v.Volume.Hosts = hosts
		}
		if err := cmp.Or(v.Volume.Check(), v.Volume.CheckMap(next)); err != nil && now.Epoch < next.Epoch {
			return now, fmt.Errorf("osdmap: proposal: %w", err)
		}
		if now.Epoch != next.Epoch-1 {
			return now, nil
		}
		next.Up = v.Volume.Hosts
		ok, err := m.commit(ctx, Change{volumeKey(volume), ofVolume(v.Volume, next), revision})
		if err != nil {
			return core.Map{}, err
		}
		if ok {
			return next, nil
		}
	}
}
