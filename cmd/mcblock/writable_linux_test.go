package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestWritable: what is in the data directory must be writable, too: it may be another file system, or of another user.
func TestWritable(t *testing.T) {
	data := t.TempDir()
	volumes := filepath.Join(data, "volumes")
	if err := os.Mkdir(volumes, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writable(data); err != nil {
		t.Error(err)
	}
	if os.Geteuid() != 0 {
		if err := os.Chmod(volumes, 0o500); err != nil { //nolint:gosec // a directory
			t.Fatal(err)
		}
	} else {
		err := errors.Join(unix.Mount(volumes, volumes, "", unix.MS_BIND, ""), unix.Mount("", volumes, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		t.Cleanup(func() { _ = unix.Unmount(volumes, unix.MNT_DETACH) })
		if err != nil {
			testenv.Skip(t, "nothing can be mounted here: %v", err)
		}
	}
	if err := writable(data); err == nil || !strings.Contains(err.Error(), volumes) {
		t.Error(err)
	}
}
