package scenario

import (
	"context"

	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/internal/connmgr"
	"github.com/mcrdma/mcrdma/internal/store"
)

// errDisk is the error of a store whose disk is full, or whose process was killed.
var errDisk = fmt.Errorf("%w: no space left on device", store.ErrFailed)

// A disk keeps the state of one daemon or agent while that is not running, in memory or, if it has
// a path, in a file.
type disk struct {
	path string

	mu       sync.Mutex
	boot     uint64
	pairs    map[string]map[string][]byte // by bucket and key
	counters map[string]uint64
	full     bool
	latency  time.Duration // of a commit; not for agents, which hold a lock meanwhile
	open     *state
	// strike is called at each write, before and after it, and at an agent's writes to its switch.
	// Once it has returned true, this process writes nothing more, and no write succeeds.
	strike func(after bool) bool
}

func newDisk() *disk {
	return &disk{pairs: map[string]map[string][]byte{}, counters: map[string]uint64{}}
}

// A state is the disk as a process has it open.
type state struct {
	d    *disk
	file *store.Store // nil: in memory
	dead bool         // under disk.mu
	err  error        // of the first write that failed, under disk.mu
}

var _ connmgr.Store = (*state)(nil)

func (d *disk) start(ctx context.Context) (*state, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open != nil {
		return nil, store.ErrLocked
	}
	d.boot = max(d.boot+1, uint64(time.Now().UnixNano()))
	s := &state{d: d}
	if d.path != "" {
		var err error
		if s.file, err = store.Open(ctx, d.path, store.Options{NoSync: true}); err != nil {
			return nil, err
		}
	}
	d.open = s
	return s, nil
}

// setFull makes all writes fail from now on, or none of the next process's.
func (d *disk) setFull(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = on
}

// setLatency sets the time of each commit.
func (d *disk) setLatency(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.latency = t
}

// onWrite sets a function that is called at each write; see strike.
func (d *disk) onWrite(f func(after bool) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.strike = f
}

// toSwitch does an agent's write to its switch, unless the agent is killed at it.
func (d *disk) toSwitch(do func() error) error {
	d.mu.Lock()
	f := d.strike
	d.mu.Unlock()
	if f == nil {
		return do()
	}
	if f(false) {
		return errDisk
	}
	err := do()
	if f(true) {
		return errDisk
	}
	return err
}

// copy returns the data in memory, and put restores it; the zero copy is an empty disk.
func (d *disk) copy() (c diskCopy) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.boot, c.counters, c.pairs = d.boot, maps.Clone(d.counters), map[string]map[string][]byte{}
	for name, b := range d.pairs {
		c.pairs[name] = maps.Clone(b)
	}
	return c
}

func (d *disk) put(c diskCopy) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.boot, d.counters, d.pairs = c.boot, maps.Clone(c.counters), map[string]map[string][]byte{}
	if d.counters == nil {
		d.counters = map[string]uint64{}
	}
	for name, b := range c.pairs {
		d.pairs[name] = maps.Clone(b)
	}
}

type diskCopy struct {
	boot     uint64
	pairs    map[string]map[string][]byte
	counters map[string]uint64
}

// len returns the number of entries.
func (d *disk) len() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range d.pairs {
		n += len(b)
	}
	return n
}

func (s *state) Boot() uint64 {
	if s.file != nil {
		return s.file.Boot()
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.d.boot
}

func (s *state) Load(bucket string) iter.Seq2[[]byte, []byte] {
	if s.file != nil {
		return s.file.Load(bucket)
	}
	s.d.mu.Lock()
	pairs := maps.Clone(s.d.pairs[bucket])
	s.d.mu.Unlock()
	return func(yield func(k, v []byte) bool) {
		for _, k := range slices.Sorted(maps.Keys(pairs)) {
			if !yield([]byte(k), slices.Clone(pairs[k])) {
				return
			}
		}
	}
}

// write does a write, unless it fails or the process is killed at it.
func (s *state) write(do func() error) error {
	d := s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.open != s:
		return store.ErrClosed
	case s.err != nil:
		return s.err
	case s.dead:
		return errDisk
	case d.full:
		s.err = errDisk
		return s.err
	}
	if s.dead = d.strike != nil && d.strike(false); s.dead {
		return errDisk
	}
	if err := do(); err != nil {
		return err
	}
	if s.dead = d.strike != nil && d.strike(true); s.dead {
		return errDisk
	}
	return nil
}

func (s *state) Commit(ctx context.Context, edits ...store.Edit) error {
	if err := ctx.Err(); err != nil || len(edits) == 0 {
		return err
	}
	s.d.mu.Lock()
	latency := s.d.latency
	s.d.mu.Unlock()
	time.Sleep(latency)
	return s.write(func() error {
		if s.file != nil {
			return s.file.Commit(ctx, edits...)
		}
		for _, e := range edits {
			b := s.d.pairs[e.Bucket]
			if b == nil {
				b = map[string][]byte{}
				s.d.pairs[e.Bucket] = b
			}
			if e.Value == nil {
				delete(b, string(e.Key))
			} else {
				b[string(e.Key)] = slices.Clone(e.Value)
			}
		}
		return nil
	})
}

func (s *state) Reserve(name string, n uint64) (first uint64, err error) {
	err = s.write(func() (err error) {
		if s.file != nil {
			first, err = s.file.Reserve(name, n)
			return err
		}
		first = max(s.d.counters[name], 1)
		s.d.counters[name] = first + n
		return nil
	})
	return first, err
}

func (s *state) Failed() error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.err
}

func (s *state) Close() error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.d.open == s {
		s.d.open = nil
	}
	if s.file != nil {
		return s.file.Close()
	}
	return nil
}

// kill prevents all further writes.
func (s *state) kill() {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.dead = true
}
