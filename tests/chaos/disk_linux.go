package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A disk is a small file system of this process alone: it is not mounted, and disappears when no
// process has it open.
type disk struct {
	fd  int
	dir string // a path to it, for other processes too
}

// diskSize is enough for the state of a daemon or an agent in a run.
const diskSize = "4m"

func newDisk() (*disk, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	err = errors.Join(unix.FsconfigSetString(fs, "size", diskSize), unix.FsconfigSetString(fs, "mode", "0755"), unix.FsconfigCreate(fs))
	if err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	return &disk{fd, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)}, nil
}

func (d *disk) ballast() string { return filepath.Join(d.dir, "ballast") }

// fill fills the disk.
func (d *disk) fill() error {
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for block := make([]byte, 4096); ; {
		if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// full reports whether it is filled.
func (d *disk) full() bool {
	_, err := os.Stat(d.ballast())
	return err == nil
}

// free frees the space again.
func (d *disk) free() error { return os.Remove(d.ballast()) }

func (d *disk) close() error { return unix.Close(d.fd) }
