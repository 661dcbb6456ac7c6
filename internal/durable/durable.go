// Package durable helps with files that must survive a crash: locks on directories and files,
// durable names and data, and errors of full disks. Linux only.
package durable

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrLocked is wrapped if another process has a file.
var ErrLocked = errors.New("in use by another process")

// Lock takes a file, or a directory, for this process and this way of having it open, as bbolt does: by flock.
func Lock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("%w (%s)", ErrLocked, holder(f))
		}
		return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
}

// holder says which process has the lock, as far as the kernel tells.
func holder(f *os.File) string {
	const unknown = "the kernel does not say which"
	locks, err := os.ReadFile("/proc/locks")
	info, statErr := f.Stat()
	if err != nil || statErr != nil {
		return unknown
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return unknown
	}
	lines := bufio.NewScanner(bytes.NewReader(locks))
	for lines.Scan() { // 1: FLOCK ADVISORY WRITE pid major:minor:inode start end
		w := strings.Fields(lines.Text())
		if len(w) < 6 || !strings.HasSuffix(w[5], fmt.Sprintf(":%d", st.Ino)) || w[4] == "0" || w[4] == "-1" {
			continue
		}
		name, err := os.ReadFile("/proc/" + w[4] + "/comm")
		if err != nil {
			return "process " + w[4]
		}
		return fmt.Sprintf("process %s, %s", w[4], bytes.TrimSpace(name))
	}
	return unknown
}

// Dir opens a directory, which it makes in one that is there, and locks it: ErrLocked. Its own name is on disk.
func Dir(path string) (*os.File, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err = Lock(f); err == nil {
		err = SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// MkdirAll makes a directory, and those above it that are missing. All their names are on disk.
func MkdirAll(path string) error {
	above := filepath.Dir(path)
	if _, err := os.Stat(above); errors.Is(err, os.ErrNotExist) {
		if err := MkdirAll(above); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return SyncDir(above) // also if it is there: it may have been made right before a crash
}

// SyncDir makes the names in a directory durable.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Sync makes a file's data and size durable (fdatasync). After an error nothing is known of what was written before, not
// even if a later call succeeds: the kernel may have dropped it.
func Sync(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EINTR):
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
	}
}

// Full says whether an error is that of a disk, a quota or a file that is full.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}
