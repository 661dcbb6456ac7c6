// Package store is the state file of an agent or a daemon: keys and values in named buckets, in one
// file that survives crashes and power loss.
//
//	s, err := store.Open(ctx, "/var/lib/mcrdma/torA.db", store.Options{})
//	for key, value := range s.Load("groups") { … }
//	err = s.Commit(ctx, store.Edit{Bucket: "groups", Key: k, Value: v}) // nil: it is on disk
//
// A [Store.Commit] is atomic. Commits that arrive while another is being written share the next
// write, so many at once cost little more than one. [Store.Reserve] assigns numbers that are never
// used twice, and [Store.Boot] counts the starts.
//
// Only one process at a time can open the file. [Open] checks it, and refuses a damaged file with
// [ErrCorrupt].
package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/mcrdma/mcrdma/internal/durable"
)

// version is that of what this package writes.
const version = 1

// The store's own pairs are in a bucket of their own.
const own = "mcrdma.store"

var (
	versionKey = []byte("version")
	bootKey    = []byte("boot")
	kindKey    = []byte("kind")
)

// An Edit sets or deletes one pair.
type Edit struct {
	Bucket     string // any name but ""
	Key, Value []byte // key: 1 to 32768 bytes; value nil: delete
}

// Encode returns the JSON of a record as a value.
func Encode(record any) []byte {
	b, err := json.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("store: a record: %v", err))
	}
	return b
}

// Decode reads Encode's output, and refuses unknown fields.
func Decode(value []byte, record any) error {
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(record); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more follows it")
	}
	return nil
}

// Options change how a file is opened; the zero value is the usual one.
type Options struct {
	// Wait is how long to wait for a process that has the file; 0: not at all.
	Wait time.Duration
	// Kind is the program whose state it is: another one's is refused. "": any is opened, and none recorded.
	Kind string
	// NoSync leaves writing to the disk to the kernel: fast, but nothing is safe
	// against power loss. For tests.
	NoSync bool
}

// A Store is an open file. Its methods may be called concurrently.
type Store struct {
	path string
	kind string
	file os.FileInfo // what was opened
	db   *bbolt.DB
	boot uint64

	queue   chan *request
	quit    chan struct{}
	stopped chan struct{} // closed when the writer has ended
	once    sync.Once
	err     error // of Close

	failed atomic.Pointer[error] // of the first commit that failed
}

// Open opens the file called path, and creates it and its directory if necessary. Errors wrap
// ErrLocked, ErrVersion, ErrCorrupt or the file system's; ctx bounds the wait for another process.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := create(path); err != nil {
			return nil, fmt.Errorf("store: making %s: %w", path, advised(err))
		}
	}
	db, file, err := open(ctx, path, o)
	if err != nil {
		return nil, fmt.Errorf("store: opening %s: %w", path, advised(err))
	}
	s := &Store{path: path, kind: o.Kind, file: file, db: db, queue: make(chan *request), quit: make(chan struct{}), stopped: make(chan struct{})}
	if err := guard(func() error { return db.Update(s.begin) }); err != nil {
		return nil, errors.Join(fmt.Errorf("store: opening %s: %w", path, advised(err)), db.Close())
	}
	go s.write()
	return s, nil
}

// Check reports why this user could not open the file called path, or make it. It neither locks nor reads it.
func Check(path string) error {
	if i, err := os.Stat(path); err == nil && !i.Mode().IsRegular() {
		return fmt.Errorf("%s is there and is not a file of data: name another file", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".check*")
		if errors.Is(err, fs.ErrNotExist) { // Open makes the directory
			return nil
		}
		if err == nil {
			defer func() { _ = os.Remove(f.Name()) }()
		}
	}
	if err != nil {
		return advised(err)
	}
	return f.Close()
}

// advised adds what to do to an error of opening or making the file.
func advised(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission): // as after a start by root
		return fmt.Errorf("%w: give the file and its directory to the user of this program, %d now (chown)", err, os.Geteuid())
	case durable.Full(err):
		return fmt.Errorf("%w: make room there", err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: make it writable, or name another file, by \"state\" in its configuration", err)
	}
	return err
}

// options are bbolt's. The list of free pages is not stored: the check at Open
// reads all pages anyway, and each commit writes less.
func options(o Options) *bbolt.Options {
	return &bbolt.Options{PageSize: pageSize, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		InitialMmapSize: 16 << 20, NoSync: o.NoSync, NoStatistics: true,
		Timeout: time.Nanosecond} // the lock is ours by then
}

// create makes a complete file, or leaves none: it is made under another name
// first. If another process makes it meanwhile, that one is taken.
func create(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, filepath.Base(path)+".new*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // it has its name by then, or failed
	if err := f.Close(); err != nil {
		return err
	}
	db, err := bbolt.Open(f.Name(), 0o600, options(Options{}))
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		return put(tx, own, versionKey, binary.BigEndian.AppendUint64(nil, version))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(durable.SyncDir(dir), durable.SyncDir(filepath.Dir(dir)))
}

// open locks and checks the file before bbolt, which trusts it, sees it.
func open(ctx context.Context, path string, o Options) (db *bbolt.DB, file os.FileInfo, err error) {
	opts := options(o)
	opts.OpenFile = func(path string, _ int, _ os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = lock(ctx, f, o.Wait)
		if err == nil {
			err = guard(func() error { return verify(f) })
		}
		if err == nil {
			file, err = f.Stat()
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}
	err = guard(func() error {
		db, err = bbolt.Open(path, 0, opts)
		return err
	})
	return db, file, err
}

// guard turns a panic into an error, a memory fault included. It is for opening: a
// later panic ends the process, and the next one checks the file.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = corrupt("%v", r)
		}
	}()
	return f()
}

// begin is the first transaction.
func (s *Store) begin(tx *bbolt.Tx) error {
	if v := number(tx, versionKey); v > version {
		return fmt.Errorf("%w: its format is %d, this program knows up to %d: run the newer program, or move the file away", ErrVersion, v, version)
	} else if v == 0 {
		return corrupt("it has no format")
	}
	if s.kind != "" {
		// Files of earlier releases have none yet.
		if v := tx.Bucket([]byte(own)).Get(kindKey); v != nil && string(unsealed(v)) != s.kind {
			return fmt.Errorf("it is the state of a %s, and this is a %s: name another file, by \"state\" in its configuration", unsealed(v), s.kind)
		}
		if err := put(tx, own, kindKey, []byte(s.kind)); err != nil {
			return err
		}
	}
	last := number(tx, bootKey)
	s.boot = max(last+perBoot, uint64(time.Now().UnixNano()))
	return put(tx, own, bootKey, binary.BigEndian.AppendUint64(nil, s.boot))
}

// perBoot is how many numbers a caller may use after Boot's before the next Open, because the clock
// may stand still or be set back meanwhile.
const perBoot = 1 << 32

// Boot returns a number that is at least 2^32 higher than at any earlier Open of the
// file. It is not below the time in nanoseconds since 1970.
func (s *Store) Boot() uint64 { return s.boot }

// Load goes through a bucket in the order of the keys, as it was when the loop
// began. The slices belong to the caller. A closed store is empty.
func (s *Store) Load(bucket string) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		var list [][2][]byte // copied, so that the loop may commit
		_ = s.db.View(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			if b == nil || bucket == own {
				return nil
			}
			return b.ForEach(func(k, v []byte) error {
				list = append(list, [2][]byte{slices.Clone(k), slices.Clone(unsealed(v))})
				return nil
			})
		}) // the one error is that it is closed
		for _, kv := range list {
			if !yield(kv[0], kv[1]) {
				return
			}
		}
	}
}

// Close waits for what is being committed and closes the file.
func (s *Store) Close() error {
	s.once.Do(func() {
		close(s.quit)
		<-s.stopped
		if err := s.db.Close(); err != nil {
			s.err = fmt.Errorf("store: closing %s: %w", s.path, err)
		}
	})
	return s.err
}
