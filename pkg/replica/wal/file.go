package wal

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/durable"
)

// A directory holds the segments. Tests use one that loses what was not synced.
type directory interface {
	list() ([]string, error)
	open(name string) (file, error) // creates the file if there is none
	remove(name string) error
	rename(from, to string) error
	sync() error // makes names durable
	Close() error
}

// A file is the file of a segment.
type file interface {
	io.ReaderAt
	io.Closer
	writev(bufs [][]byte, at int64) error // concatenated
	allocate(size int64) bool             // reserves zeros if possible, so that a sync need not write the size each time
	truncate(size int64) error            // durable when it returns
	size() (int64, error)
	sync() error // makes data and size durable
}

// osDirectory is a directory locked by this process.
type osDirectory struct{ *os.File }

func (d osDirectory) list() ([]string, error) {
	entries, err := os.ReadDir(d.Name())
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

func (d osDirectory) open(name string) (file, error) {
	f, err := os.OpenFile(filepath.Join(d.Name(), name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d osDirectory) remove(name string) error { return os.Remove(filepath.Join(d.Name(), name)) }
func (d osDirectory) sync() error              { return d.Sync() }

func (d osDirectory) rename(from, to string) error {
	return os.Rename(filepath.Join(d.Name(), from), filepath.Join(d.Name(), to))
}

type osFile struct{ *os.File }

// maxVectors is the kernel's UIO_MAXIOV.
const maxVectors = 1024

func (f osFile) writev(bufs [][]byte, at int64) error {
	bufs = slices.DeleteFunc(bufs, func(b []byte) bool { return len(b) == 0 })
	for len(bufs) > 0 {
		n, err := unix.Pwritev(int(f.Fd()), bufs[:min(len(bufs), maxVectors)], at)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return &os.PathError{Op: "write", Path: f.Name(), Err: err}
		}
		if n = max(n, 0); n == 0 && err == nil {
			return io.ErrShortWrite
		}
		at += int64(n)
		for len(bufs) > 0 && n >= len(bufs[0]) {
			n -= len(bufs[0])
			bufs = bufs[1:]
		}
		if n > 0 {
			bufs[0] = bufs[0][n:]
		}
	}
	return nil
}

func (f osFile) allocate(size int64) bool {
	return unix.Fallocate(int(f.Fd()), 0, 0, size) == nil // writing reports any error
}

func (f osFile) truncate(size int64) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Sync()
}

func (f osFile) size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f osFile) sync() error { return durable.Sync(f.File) }
