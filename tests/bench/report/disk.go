package report

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Fdatasyncs writes 4 KiB to each of so many files of a directory in parallel, and makes them
// durable, again and again. It returns how long each took, in order of length.
func Fdatasyncs(dir string, files int, span time.Duration) ([]time.Duration, error) {
	var wg sync.WaitGroup
	took, errs := make([][]time.Duration, files), make([]error, files)
	for i := range files {
		wg.Go(func() { took[i], errs[i] = fdatasyncs(filepath.Join(dir, fmt.Sprint("file", i)), span) })
	}
	wg.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	return all, errors.Join(errs...)
}

func fdatasyncs(file string, span time.Duration) (took []time.Duration, err error) {
	x, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	const length = 32 << 20
	if _, err := x.WriteAt(make([]byte, length), 0); err != nil { // otherwise the file system's journal is measured too
		return nil, err
	}
	if err := x.Sync(); err != nil {
		return nil, err
	}
	block := make([]byte, 4096)
	for begun := time.Now(); len(took) == 0 || time.Since(begun) < span; {
		at := time.Now()
		if _, err := x.WriteAt(block, int64(len(took)*len(block)%length)); err != nil {
			return nil, err
		}
		if err := unix.Fdatasync(int(x.Fd())); err != nil {
			return nil, err
		}
		took = append(took, time.Since(at))
	}
	return took, nil
}

// InMemory reports whether a directory's files are in memory: on tmpfs.
func InMemory(dir string) (bool, error) {
	var s unix.Statfs_t
	err := os.NewSyscallError("statfs", unix.Statfs(dir, &s))
	return s.Type == unix.TMPFS_MAGIC, err
}
