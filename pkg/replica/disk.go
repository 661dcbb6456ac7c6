package replica

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/internal/durable"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/store"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// maxPiece is the maximum number of data bytes in a piece of the store that is copied to a member.
const maxPiece = 1 << 20

// maxHole is the longest range, with its holes, that such a piece covers.
const maxHole = 1 << 30

// logDelay is how long entries of the log wait for more, to share a sync. Only a flush waits for
// the sync, and it hurries the log.
const logDelay = 20 * time.Millisecond

// disk is a volume on this host's disk: the log and the store. A separate goroutine writes to the
// store, in the order of the calls. Its methods are called in the loop, except those of log and
// store.
type disk struct {
	log    *wal.Log // nil: what is on the disk is of no use
	store  *store.Store
	post   func(func()) // to the loop
	fail   func(error)  // in the loop
	jobs   *mailbox     // of the store
	ended  chan struct{}
	copied atomic.Uint64 // bytes of another host's store that have been copied to this one

	backfilling bool   // by the latest hard state
	applied     uint64 // entries that the store has, by what was ordered
	synced      uint64 // entries that the store durably has
	syncing     bool
	era         atomic.Uint64 // counts resets: outcomes of jobs from before the last one are ignored
	step        uint64        // entries after which the store is synced, so that trimming need not wait
	held        []change
	waits       bool // the first of held waits for the store

	broken error // of the store; its goroutine's
}

type change struct {
	core.Persist
	entry *wal.Entry // of an Append
}

// openDisk opens what this host has of a volume. synced is called by another goroutine.
func openDisk(dir string, volume uint64, size int64, step uint64, delay time.Duration, synced func(seq uint64, err error)) (*disk, error) {
	if err := durable.MkdirAll(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "store")
	if _, err := os.Lstat(filepath.Join(dir, "log")); err == nil && !store.Exists(path) {
		// The store is made before the log: an empty store with an existing log would read trimmed
		// entries as zeros.
		return nil, fmt.Errorf("%w: %s is not there, but the log that belongs to it: put it back, or remove %s for the volume to be copied to here again",
			store.ErrDamaged, path, dir)
	}
	s, err := store.Open(path, volume, size)
	if err != nil {
		return nil, err
	}
	l, err := wal.Open(filepath.Join(dir, "log"), volume, wal.Options{Synced: synced, Delay: delay})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	d := &disk{log: l, store: s, jobs: newMailbox(false, func() {}), ended: make(chan struct{}), step: step}
	stored := l.Stored()
	d.applied, d.backfilling = stored.Tail.Index, stored.Backfilling
	d.synced = d.applied
	return d, nil
}

// start starts the store's goroutine.
func (d *disk) start(post func(func()), fail func(error)) {
	d.post, d.fail = post, fail
	go func() {
		defer close(d.ended)
		d.jobs.run()
	}()
}

// close makes the queued jobs durable.
func (d *disk) close() error {
	if d.log == nil {
		return nil
	}
	if d.post != nil {
		d.jobs.close()
		<-d.ended
	}
	return errors.Join(d.log.Close(), d.store.Close())
}

// job runs a function in the store's goroutine, and then another in the loop.
func (d *disk) job(f func() error, then func()) {
	d.jobs.post(func() {
		if d.broken == nil {
			d.broken = f()
		}
		if err := d.broken; err != nil {
			d.post(func() { d.fail(fmt.Errorf("the store: %w", err)) })
		} else if then != nil {
			d.post(then)
		}
	})
}

// persist makes a change durable, after a sync of the store if that must come first.
func (d *disk) persist(c change) {
	if _, ok := c.Change.(core.Append); ok && len(d.held) == 0 {
		d.log.Persist(c.Persist, c.entry)
		return
	}
	d.held = append(d.held, c)
	d.release()
}

func (d *disk) release() {
	for len(d.held) > 0 && !d.waits {
		c := &d.held[0]
		if d.needsStore(c.Change) {
			d.waits = true
			d.sync(func() {
				d.waits = false
				if _, ok := d.held[0].Change.(core.Save); ok {
					d.backfilling = false
				}
				d.release()
			})
			return
		}
		if s, ok := c.Change.(core.Save); ok {
			d.backfilling = s.HardState.Backfilling
		}
		d.log.Persist(c.Persist, c.entry)
		d.held[0] = change{}
		d.held = d.held[1:]
	}
}

// needsStore reports whether the store must be durable before a change is.
func (d *disk) needsStore(c core.Change) bool {
	switch c := c.(type) {
	case core.Trim:
		return c.To > d.synced
	case core.Save:
		return d.backfilling && !c.HardState.Backfilling
	}
	return false
}

// sync makes all earlier jobs durable.
func (d *disk) sync(then func()) {
	to, era := d.applied, d.era.Load()
	d.syncing = true
	d.job(d.store.Sync, func() {
		if d.syncing = false; era == d.era.Load() {
			d.synced = to
		}
		then()
	})
}

// apply writes entries to the store, but only their parts before an offset. then gets false if the
// store was reset meanwhile.
func (d *disk) apply(entries []item, to uint64, before int64, then func(counts bool)) {
	era := d.era.Load()
	d.job(func() error {
		for i := range entries {
			switch err := d.applyOne(&entries[i], before); {
			case errors.Is(err, wal.ErrNotFound) && era != d.era.Load():
				return nil // the reset has removed it from the log
			case err != nil:
				return err
			}
		}
		return nil
	}, func() { then(era == d.era.Load()) })
	d.jobs.post(func() { // also if the store has broken
		for i := range entries {
			entries[i].buf.Release()
		}
	})
	if d.applied = to; d.applied-d.synced >= d.step && !d.syncing {
		d.sync(func() {})
	}
}

func (d *disk) applyOne(i *item, before int64) error {
	e := &i.Entry
	n := min(e.Length, before-e.Offset)
	if n <= 0 {
		return nil
	}
	switch e.Kind {
	case wal.Trim:
		return d.store.Trim(e.Offset, n)
	case wal.Zero:
		return d.store.Zero(e.Offset, n)
	}
	data := e.Data
	if data == nil {
		there, err := d.log.Read(e.Version.Index)
		if err != nil {
			return err
		}
		data = there.Data
	}
	return d.store.WriteAt(data[:n], e.Offset)
}

// reset: the store will be copied from another host. When complete it has the entries up to an
// index.
func (d *disk) reset(tail uint64) {
	d.era.Add(1)
	d.applied, d.synced = tail, tail
}

// install writes a piece of another host's store. The first piece clears the store.
func (d *disk) install(cursor uint64, pieces []piece) {
	d.job(func() error {
		d.copied.Store(cursor)
		if cursor == 0 {
			if err := d.store.Clear(); err != nil {
				return err
			}
		}
		for _, p := range pieces {
			if err := d.store.WriteAt(p.data, p.off); err != nil {
				return err
			}
		}
		return nil
	}, nil)
}

// piece reads a piece of the store from a cursor on, after all earlier jobs.
func (d *disk) piece(cursor uint64, then func(pieces []piece, next uint64)) {
	var pieces []piece
	var next uint64
	d.job(func() (err error) {
		pieces, next, err = readPiece(d.store, cursor)
		return err
	}, func() { then(pieces, next) })
}

func readPiece(s *store.Store, cursor uint64) (pieces []piece, next uint64, err error) {
	if cursor >= uint64(s.Size()) { //nolint:gosec // not negative
		return nil, core.Full, nil
	}
	at, left := int64(cursor), int64(maxPiece) //nolint:gosec // below the size
	for e, err := range s.Extents(at, min(s.Size()-at, maxHole)) {
		if err != nil {
			return nil, 0, err
		}
		n := e.Length
		if !e.Hole {
			n = min(n, left)
			p := piece{e.Offset, make([]byte, n)}
			if err := s.ReadAt(p.data, p.off); err != nil {
				return nil, 0, err
			}
			pieces = append(pieces, p)
			left -= n
		}
		if at = e.Offset + n; left == 0 {
			break
		}
	}
	if at >= s.Size() {
		return pieces, core.Full, nil
	}
	return pieces, uint64(at), nil //nolint:gosec // not negative
}
