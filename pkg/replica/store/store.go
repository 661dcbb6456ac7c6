// Package store implements the block file of one volume on one host: a sparse file of the volume's
// size, with a small header file beside it that holds the volume's ID, its size and the format.
//
//	s, err := store.Open(dir, volume, size)
//	err = s.WriteAt(data, offset) // also Trim, Zero
//	err = s.Sync()                // now it is on disk
//
// Writes are neither atomic nor ordered: after a crash, the log must be applied again. Ranges that
// were never written, or were trimmed, are holes: they read as zeros and take no space.
package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"sync"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/durable"
)

// Format is the version of the format that this package writes.
const Format = 1

// Piece is the number of bytes that a scrub compares at a time.
const Piece = 4 << 20

// Errors that the errors of this package wrap.
var (
	ErrForeign = errors.New("store: of another volume")
	ErrFormat  = errors.New("store: format of a newer version")
	ErrSize    = errors.New("store: of another size")
	ErrDamaged = errors.New("store: damaged")
	ErrRange   = errors.New("store: beyond the volume")
)

// header is the content of the header file.
type header struct {
	Format int    `json:"format"`
	Volume uint64 `json:"volume"`
	Size   int64  `json:"size"` // bytes
}

// Names of the files.
const (
	headerName = "header.json"
	dataName   = "data"
)

// A Store is a volume's block file. Its methods may be called by several goroutines.
type Store struct {
	size int64
	dir  *os.File
	f    *os.File

	mu     sync.Mutex
	failed error // of the first sync that failed
}

// Open opens and locks the store of a volume of size bytes in a directory. It creates the store,
// filled with zeros, if there is none. Errors: ErrForeign, ErrFormat, ErrSize, ErrDamaged,
// durable.ErrLocked, and those of the disk.
func Open(path string, volume uint64, size int64) (*Store, error) {
	s, err := open(path, header{Format, volume, size})
	if err != nil {
		return nil, fmt.Errorf("store: opening %s: %w", path, told(err))
	}
	return s, nil
}

func open(path string, want header) (s *Store, err error) {
	if want.Size <= 0 {
		return nil, fmt.Errorf("%w: %d bytes", ErrSize, want.Size)
	}
	s = &Store{size: want.Size}
	if s.dir, err = durable.Dir(path); err != nil {
		return nil, err
	}
	if err = s.openFiles(path, want); err != nil {
		err = errors.Join(err, s.dir.Close())
		if s.f != nil {
			err = errors.Join(err, s.f.Close())
		}
		return nil, err
	}
	return s, nil
}

// Exists reports whether a store was created in a directory, even if files are missing now.
func Exists(path string) bool {
	_, err := os.Lstat(filepath.Join(path, headerName))
	return !errors.Is(err, os.ErrNotExist)
}

// openFiles opens the files, or creates them.
func (s *Store) openFiles(path string, want header) error {
	b, err := os.ReadFile(filepath.Join(path, headerName))
	fresh, data := errors.Is(err, os.ErrNotExist), filepath.Join(path, dataName)
	if err != nil && !fresh {
		return err
	}
	if fresh {
		if s.f, err = os.OpenFile(data, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return err
		}
		return s.create(want)
	}
	if s.f, err = os.OpenFile(data, os.O_RDWR, 0); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %s is there, and %s is not: put it back, or remove the directory for the volume to be copied to here again", ErrDamaged, headerName, dataName)
	} else if err != nil {
		return err
	}
	return s.check(b, want)
}

// create creates a new store. The header is written last: without it the store does not exist.
func (s *Store) create(h header) error {
	info, err := s.f.Stat()
	if err != nil {
		return err
	}
	for e, err := range extents(s.f, 0, info.Size()) {
		if err == nil && !e.Hole {
			err = fmt.Errorf("%w: %s has data, and %s is not there: put it back, or remove the directory for the volume to be copied to here again", ErrDamaged, dataName, headerName)
		}
		if err != nil {
			return err
		}
	}
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := s.f.Truncate(h.Size); err != nil {
		return err
	}
	if err := s.f.Sync(); err != nil {
		return err
	}
	if err := renameio.WriteFile(filepath.Join(s.dir.Name(), headerName), append(b, '\n'), 0o600); err != nil {
		return err
	}
	return s.dir.Sync()
}

// check compares a header file with the expected header.
func (s *Store) check(b []byte, want header) error {
	var h header
	if err := json.Unmarshal(b, &h); err != nil || h.Format < 1 {
		return fmt.Errorf("%w: %s is not a header: %.100q", ErrDamaged, headerName, b)
	}
	if h.Format > Format {
		return fmt.Errorf("%w: %d, and this program knows up to %d: use a newer program", ErrFormat, h.Format, Format)
	}
	if h.Volume != want.Volume {
		return fmt.Errorf("%w: of %x, and not of %x: it is not this volume's directory", ErrForeign, h.Volume, want.Volume)
	}
	info, err := s.f.Stat()
	if err != nil {
		return err
	}
	if h.Size != want.Size || info.Size() != want.Size {
		return fmt.Errorf("%w: the volume has %d bytes, the header says %d, the file has %d", ErrSize, want.Size, h.Size, info.Size())
	}
	return nil
}

// told adds to an error of the disk what to do about it.
func told(err error) error {
	if errors.Is(err, unix.EFBIG) {
		return fmt.Errorf("no file can be as long here as the volume: make a smaller one, have the data on another file system, or lift the limit of files (ulimit -f): %w", err)
	}
	if durable.Full(err) {
		return fmt.Errorf("the disk is full: make space: %w", err)
	}
	return err
}

// Largest returns the length of the longest possible file in a directory, in bytes: no volume there can be
// larger. 0: not known.
func Largest(dir string) uint64 {
	f, err := os.CreateTemp(dir, ".longest-*")
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	if os.Remove(f.Name()) != nil {
		return 0
	}
	n := int64(0)
	for bit := int64(1) << 62; bit > 0; bit >>= 1 {
		if f.Truncate(n|bit) == nil {
			n |= bit
		}
	}
	return uint64(n) //nolint:gosec // not negative
}

// in returns an error if a range is not within the volume.
func (s *Store) in(off, n int64) error {
	if off < 0 || n < 0 || off > s.size-n {
		return fmt.Errorf("%w: %d bytes at %d, and it has %d", ErrRange, n, off, s.size)
	}
	return nil
}

// Size returns the volume's size in bytes.
func (s *Store) Size() int64 { return s.size }

// ReadAt reads all of p.
func (s *Store) ReadAt(p []byte, off int64) error {
	if err := s.in(off, int64(len(p))); err != nil {
		return err
	}
	_, err := s.f.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: the file has become shorter", ErrSize)
	}
	return err
}

// WriteAt writes all of p. After an error, a part may have been written.
func (s *Store) WriteAt(p []byte, off int64) error {
	if err := s.in(off, int64(len(p))); err != nil {
		return err
	}
	_, err := s.f.WriteAt(p, off)
	return told(err)
}

// Trim zeroes n bytes and frees their space.
func (s *Store) Trim(off, n int64) error {
	return s.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// Zero zeroes n bytes and allocates their space.
func (s *Store) Zero(off, n int64) error {
	return s.fallocate(unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// Clear zeroes the whole volume and frees its space.
func (s *Store) Clear() error { return s.Trim(0, s.size) }

// fallocate zeroes a range. If the file system does not support it, it writes zeros.
func (s *Store) fallocate(mode uint32, off, n int64) error {
	if err := s.in(off, n); err != nil || n == 0 {
		return err
	}
	for {
		err := unix.Fallocate(int(s.f.Fd()), mode, off, n)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP):
			return s.zeros(off, n)
		case err != nil:
			return told(&os.PathError{Op: "fallocate", Path: s.f.Name(), Err: err})
		}
		return nil
	}
}

func (s *Store) zeros(off, n int64) error {
	buf := make([]byte, min(n, 1<<20))
	for end := off + n; off < end; off += int64(len(buf)) {
		if err := s.WriteAt(buf[:min(int64(len(buf)), end-off)], off); err != nil {
			return err
		}
	}
	return nil
}

// Sync makes all earlier writes durable. Once it has failed, it always fails: a later success of
// fsync does not mean that the same pages are on disk.
func (s *Store) Sync() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		if err := durable.Sync(s.f); err != nil {
			s.failed = fmt.Errorf("store: nothing more becomes durable: %w", told(err))
		}
	}
	return s.failed
}

// An Extent is a range of the volume. A hole reads as zeros; other ranges may, too.
type Extent struct {
	Offset, Length int64 // bytes
	Hole           bool
}

// Extents returns the extents of a range, in order and without gaps.
func (s *Store) Extents(off, n int64) iter.Seq2[Extent, error] {
	if err := s.in(off, n); err != nil {
		return func(yield func(Extent, error) bool) { yield(Extent{}, err) }
	}
	return extents(s.f, off, off+n)
}

func extents(f *os.File, at, end int64) iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		for at := at; at < end; {
			e := Extent{Offset: at}
			data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
			if errors.Is(err, unix.ENXIO) { // only a hole is left
				data, err = end, nil
			}
			next := data
			if e.Hole = data > at; err == nil && !e.Hole {
				next, err = unix.Seek(int(f.Fd()), at, unix.SEEK_HOLE)
			}
			if err != nil {
				yield(Extent{}, &os.PathError{Op: "seek", Path: f.Name(), Err: err})
				return
			}
			if e.Length = min(next, end) - at; !yield(e, nil) {
				return
			}
			at += e.Length
		}
	}
}

// Close closes the store. It does not sync.
func (s *Store) Close() error { return errors.Join(s.f.Close(), s.dir.Close()) }
