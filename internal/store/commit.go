package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"

	"go.etcd.io/bbolt"
)

// A request is one caller's part of a transaction.
type request struct {
	do   func(*bbolt.Tx) error
	done chan error
}

// Commit makes all the edits, in order and in one transaction, and returns when they are durable.
// If ctx ends while the call still waits for its turn, nothing is done; after that ctx has no
// effect. Errors wrap ctx's, ErrClosed, ErrInvalid, or ErrFailed: then the edits may or may not be
// there when the file is opened again, and nothing more is written until then.
func (s *Store) Commit(ctx context.Context, edits ...Edit) error {
	for _, e := range edits {
		if err := e.check(); err != nil {
			return err
		}
	}
	if len(edits) == 0 {
		return ctx.Err()
	}
	return s.submit(ctx, func(tx *bbolt.Tx) error {
		for _, e := range edits {
			if err := e.apply(tx); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e Edit) check() error {
	switch {
	case e.Bucket == "" || e.Bucket == own || len(e.Bucket) > bbolt.MaxKeySize:
		return fmt.Errorf("store: %w: no bucket is called %.40q", ErrInvalid, e.Bucket)
	case len(e.Key) == 0 || len(e.Key) > bbolt.MaxKeySize:
		return fmt.Errorf("store: %w: bucket %s: a key of %d bytes: want 1 to %d", ErrInvalid, e.Bucket, len(e.Key), bbolt.MaxKeySize)
	case len(e.Value) > maxValue:
		return fmt.Errorf("store: %w: bucket %s: a value of %d bytes: at most %d", ErrInvalid, e.Bucket, len(e.Value), maxValue)
	}
	return nil
}

// maxValue bounds values, since each is rewritten with its neighbors.
const maxValue = 64 << 20

func (e Edit) apply(tx *bbolt.Tx) error {
	if e.Value != nil {
		return put(tx, e.Bucket, e.Key, e.Value)
	}
	if b := tx.Bucket([]byte(e.Bucket)); b != nil {
		return b.Delete(e.Key)
	}
	return nil
}

// Reserve assigns n numbers, starting with first. They are never assigned again under this name,
// not even after a crash. The first ever is 1. Errors are those of Commit.
func (s *Store) Reserve(name string, n uint64) (first uint64, err error) {
	if name == "" || len(name) > 1024 || n == 0 {
		return 0, fmt.Errorf("store: %w: reserving %d numbers under the name %.40q", ErrInvalid, n, name)
	}
	key, exhausted := counterKey(name), false
	err = s.submit(context.Background(), func(tx *bbolt.Tx) error {
		first = max(number(tx, key), 1)
		if exhausted = n > math.MaxUint64-first; exhausted {
			return nil
		}
		return put(tx, own, key, binary.BigEndian.AppendUint64(nil, first+n))
	})
	switch {
	case err != nil:
		return 0, err
	case exhausted:
		return 0, fmt.Errorf("store: %w: fewer than %d numbers are left under the name %q", ErrInvalid, n, name)
	}
	return first, nil
}

// counterKey is where the next number of Reserve is.
func counterKey(name string) []byte { return []byte("next " + name) }

// submit runs a function in a transaction of the writer, and waits until that is durable.
func (s *Store) submit(ctx context.Context, do func(*bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("store: not committed: %w", err)
	}
	r := &request{do, make(chan error, 1)}
	select {
	case s.queue <- r:
		return <-r.done
	case <-ctx.Done():
		return fmt.Errorf("store: not committed: %w", ctx.Err())
	case <-s.quit:
		return fmt.Errorf("store: not committed: %w", ErrClosed)
	}
}

// write is the one goroutine that writes. All requests that wait when it is
// their turn share a transaction.
func (s *Store) write() {
	defer close(s.stopped)
	var batch []*request
	for {
		select {
		case r := <-s.queue:
			batch = append(batch[:0], r)
		case <-s.quit:
			return
		}
		for more := true; more; {
			select {
			case r := <-s.queue:
				batch = append(batch, r)
			default:
				more = false
			}
		}
		err := s.transact(batch)
		for _, r := range batch {
			r.done <- err
		}
		clear(batch)
	}
}

// transact commits a batch. After a failure the content of the disk is unknown, so nothing more is
// written.
func (s *Store) transact(batch []*request) error {
	if err := s.Failed(); err != nil {
		s.failed.Store(&err)
		return err
	}
	err := s.db.Update(func(tx *bbolt.Tx) error {
		for _, r := range batch {
			if err := r.do(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("store: %w: %s: %w: free or repair the disk, then restart the program", ErrFailed, s.path, err)
		s.failed.Store(&err)
	}
	return err
}

// Failed returns the reason why nothing is written any more: the error, which wraps ErrFailed, of
// the first such Commit, or that the file has been removed, after which nothing would be durable.
// nil: neither.
func (s *Store) Failed() error {
	if err := s.failed.Load(); err != nil {
		return *err
	}
	if now, err := os.Stat(s.path); errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(now, s.file) {
		return fmt.Errorf("store: %w: %s was removed or replaced while in use: restart the program", ErrFailed, s.path)
	}
	return nil
}

func put(tx *bbolt.Tx, bucket string, key, value []byte) error {
	b, err := tx.CreateBucketIfNotExists([]byte(bucket))
	if err != nil {
		return err
	}
	sealed := make([]byte, 0, len(value)+sealLen)
	sealed = append(sealed, value...)
	return b.Put(key, binary.BigEndian.AppendUint32(sealed, checksum([]byte(bucket), key, value)))
}

// number reads one of the store's own numbers; 0: it is not there.
func number(tx *bbolt.Tx, key []byte) uint64 {
	b := tx.Bucket([]byte(own))
	if b == nil {
		return 0
	}
	v := b.Get(key)
	if len(v) != 8+sealLen {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}
