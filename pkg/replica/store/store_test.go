package store

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/durable"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

const size = 1 << 20

func mustOpen(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, 7, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return s
}

// allocated is how many bytes the file takes on disk.
func allocated(t *testing.T, s *Store) int64 {
	t.Helper()
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	info, err := s.f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

func list(t *testing.T, s *Store, off, n int64) []Extent {
	t.Helper()
	var all []Extent
	for e, err := range s.Extents(off, n) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// Writes, trims and zeros at random, against a slice of bytes; the store is opened again between them.
func TestRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	dir := filepath.Join(t.TempDir(), "store")
	want := make([]byte, size)
	s := mustOpen(t, dir)
	for i := range 400 {
		off := rnd.Int64N(size)
		n := rnd.Int64N(min(size-off, 40000) + 1)
		var err error
		switch rnd.IntN(4) {
		case 0:
			clear(want[off : off+n])
			err = s.Trim(off, n)
		case 1:
			clear(want[off : off+n])
			err = s.Zero(off, n)
		default:
			for j := range n {
				want[off+j] = byte(rnd.Uint32())
			}
			err = s.WriteAt(want[off:off+n], off)
		}
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, n)
		if err := s.ReadAt(got, off); err != nil || !bytes.Equal(got, want[off:off+n]) {
			t.Fatalf("change %d: %v", i, err)
		}
		at := off
		for _, e := range list(t, s, off, n) {
			if e.Offset != at || e.Length <= 0 || e.Hole && !bytes.Equal(want[at:at+e.Length], make([]byte, e.Length)) {
				t.Fatalf("change %d: extent %+v at %d", i, e, at)
			}
			at += e.Length
		}
		if at != off+n {
			t.Fatalf("extents end at %d, not %d", at, off+n)
		}
		if i%100 == 99 {
			if err := errors.Join(s.Sync(), s.Close()); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, dir)
		}
	}
	got := make([]byte, size)
	if err := s.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("at the end: %v", err)
	}
}

// What is not written takes no space, and what is trimmed gives it back; zeros keep theirs.
func TestSpace(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "store"))
	if n := allocated(t, s); n != 0 {
		t.Errorf("a new store takes %d bytes", n)
	}
	if err := s.WriteAt(bytes.Repeat([]byte{1}, 128<<10), 256<<10); err != nil {
		t.Fatal(err)
	}
	if n := allocated(t, s); n < 128<<10 || n > 160<<10 {
		t.Errorf("128 KiB take %d bytes", n)
	}
	want := []Extent{{0, 256 << 10, true}, {256 << 10, 128 << 10, false}, {384 << 10, 640 << 10, true}}
	if got := list(t, s, 0, size); !slices.Equal(got, want) {
		t.Errorf("extents %v", got)
	}
	if got := list(t, s, 300<<10, 10); !slices.Equal(got, []Extent{{300 << 10, 10, false}}) {
		t.Errorf("extents %v", got)
	}
	if err := errors.Join(s.Trim(256<<10, 64<<10), s.Zero(320<<10, 64<<10)); err != nil {
		t.Fatal(err)
	}
	if n := allocated(t, s); n < 64<<10 || n > 96<<10 {
		t.Errorf("after a trim of the half, and zeros: %d bytes", n)
	}
	if err := s.Clear(); err != nil {
		t.Fatal(err)
	}
	if n := allocated(t, s); n != 0 {
		t.Errorf("cleared, and takes %d bytes", n)
	}
	if got := list(t, s, 0, size); !slices.Equal(got, []Extent{{0, size, true}}) {
		t.Errorf("extents %v", got)
	}
}

func TestRefused(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "store"))
	for _, r := range [][2]int64{{-1, 1}, {0, -1}, {size, 1}, {1, size}, {1 << 62, 1 << 62}, {-1 << 63, 1}} {
		var ext error
		for _, ext = range s.Extents(r[0], r[1]) {
			break
		}
		for i, err := range []error{ext, s.Trim(r[0], r[1]), s.Zero(r[0], r[1])} {
			if !errors.Is(err, ErrRange) {
				t.Errorf("%v, %d: %v", r, i, err)
			}
		}
	}
	for _, off := range []int64{-1, size, size - 1} {
		if err := errors.Join(s.ReadAt(make([]byte, 2), off), s.WriteAt(make([]byte, 2), off)); strings.Count(fmt.Sprint(err), ErrRange.Error()) != 2 {
			t.Errorf("at %d: %v", off, err)
		}
	}
	for name, c := range map[string]struct {
		change func(dir string) error
		volume uint64
		size   int64
		want   error
		text   string
	}{
		"another volume": {nil, 8, size, ErrForeign, "not this volume's directory"},
		"another size":   {nil, 7, 2 * size, ErrSize, "the volume has 2097152 bytes"},
		"no size":        {nil, 7, 0, ErrSize, ""},
		"newer format": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, headerName), []byte(`{"format":2,"something":"new"}`), 0o600)
		}, 7, size, ErrFormat, "use a newer program"},
		"header damaged": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, headerName), []byte("{\x00"), 0o600)
		}, 7, size, ErrDamaged, "not a header"},
		"header of nothing": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, headerName), []byte("{}"), 0o600)
		}, 7, size, ErrDamaged, "not a header"},
		"header gone": {func(dir string) error { return os.Remove(filepath.Join(dir, headerName)) }, 7, size, ErrDamaged, "put it back"},
		"data cut":    {func(dir string) error { return os.Truncate(filepath.Join(dir, dataName), size/2) }, 7, size, ErrSize, "the file has 524288"},
		"data gone":   {func(dir string) error { return os.Remove(filepath.Join(dir, dataName)) }, 7, size, ErrDamaged, "data is not: put it back"},
		"a directory for data": {func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, dataName)), os.Mkdir(filepath.Join(dir, dataName), 0o700))
		}, 7, size, syscall.EISDIR, ""},
	} {
		dir := filepath.Join(t.TempDir(), "store")
		s := mustOpen(t, dir)
		if err := errors.Join(s.WriteAt([]byte("data"), 5000), s.Close()); err != nil {
			t.Fatal(err)
		}
		if c.change != nil {
			if err := c.change(dir); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Open(dir, c.volume, c.size); !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A store whose making was interrupted is made again; one that is in use is not opened twice.
func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, dir)
	if _, err := Open(dir, 7, size); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
	if err := errors.Join(s.Close(), os.Remove(filepath.Join(dir, headerName)), os.Truncate(filepath.Join(dir, dataName), 100)); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, dir)
	if err := s.WriteAt([]byte{1}, size-1); err != nil {
		t.Error(err)
	}
	if err := os.Truncate(filepath.Join(dir, dataName), 100); err != nil {
		t.Fatal(err)
	}
	if err := s.ReadAt(make([]byte, 10), 1000); !errors.Is(err, ErrSize) {
		t.Errorf("read of a file that was cut: %v", err)
	}
}

// A full disk is reported as such, and the earlier content stays. A tmpfs cannot zero a range, so
// zeros are written there.
func TestFull(t *testing.T) {
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=512k"); err != nil {
		testenv.Skip(t, "mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(filepath.Join(mount, "store"), 7, size)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	one := bytes.Repeat([]byte{1}, 64<<10)
	if err := s.WriteAt(one, 0); err != nil {
		t.Fatal(err)
	}
	err = s.WriteAt(make([]byte, size/2), size/2)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "the disk is full: make space") {
		t.Errorf("write: %v", err)
	}
	if err := s.Zero(size/4, size/2); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("zeros: %v", err)
	}
	got := make([]byte, len(one))
	if err := s.ReadAt(got, 0); err != nil || !bytes.Equal(got, one) {
		t.Errorf("what was there: %v", err)
	}
	if err := errors.Join(s.Trim(size/4, 3*size/4), s.Zero(0, 4096), s.WriteAt(one, size/2), s.Sync()); err != nil {
		t.Errorf("with space: %v", err)
	}
	if err := s.ReadAt(got[:4096], 0); err != nil || !bytes.Equal(got[:4096], make([]byte, 4096)) {
		t.Errorf("zeros that are written: %v", err)
	}
}

// A sync that has failed once never succeeds again.
func TestSyncFails(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "store"))
	good := s.f
	r, w, err := os.Pipe() // which cannot be synced
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	s.f = w
	first := s.Sync()
	s.f = good
	if err := s.Sync(); first == nil || !errors.Is(err, first) {
		t.Errorf("%v, then %v", first, err)
	}
}

// FuzzHeader: no header is taken but the volume's own.
func FuzzHeader(f *testing.F) {
	f.Add([]byte(`{"format":1,"volume":7,"size":1048576}`))
	f.Add([]byte(`{"format":1,"volume":7,"size":-1}`))
	f.Add([]byte(`[]`))
	data, err := os.Create(filepath.Join(f.TempDir(), "data"))
	if err == nil {
		err = data.Truncate(size)
	}
	if err != nil {
		f.Fatal(err)
	}
	s := &Store{f: data}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := s.check(b, header{Format, 7, size})
		if err == nil && (!bytes.Contains(b, []byte("7")) || !bytes.Contains(b, []byte("1048576"))) {
			t.Errorf("%q is taken", b)
		}
		if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrForeign) && !errors.Is(err, ErrSize) {
			t.Error(err)
		}
	})
}

// TestLargest: a file can be so long in a directory, and not a byte longer.
func TestLargest(t *testing.T) {
	dir := t.TempDir()
	n := int64(Largest(dir)) //nolint:gosec // a file's length
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(n); err != nil || n < 1<<30 {
		t.Errorf("%d: %v", n, err)
	}
	if n < math.MaxInt64 && f.Truncate(n+1) == nil {
		t.Errorf("%d, and one more byte is possible", n)
	}
	if list, err := os.ReadDir(dir); len(list) != 1 || Largest(filepath.Join(dir, "none")) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}

// TestTooLong: a file system that has no files as long as the volume is not told as full.
func TestTooLong(t *testing.T) {
	err := told(&os.PathError{Op: "truncate", Path: "data", Err: syscall.EFBIG})
	if !errors.Is(err, syscall.EFBIG) || strings.Contains(err.Error(), "full") || !strings.Contains(err.Error(), "another file system") {
		t.Error(err)
	}
}
