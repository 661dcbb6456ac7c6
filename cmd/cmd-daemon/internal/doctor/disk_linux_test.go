package doctor

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestDisk: lookAtDisk sees that the state file's disk is full or read-only, also before there is a file.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		testenv.Skip(t, "mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(dir, "daemon.db")
	if d := lookAtDisk(file); d == nil || d.ReadOnly || d.Free != 2<<20 {
		t.Errorf("empty: %+v", d)
	}
	if err := os.WriteFile(file, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := lookAtDisk(file); d == nil || d.ReadOnly || d.Free != 0 {
		t.Errorf("full: %+v", d)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if d := lookAtDisk(file); d == nil || !d.ReadOnly {
		t.Errorf("read-only: %+v", d)
	}
	if d := lookAtDisk("/no/daemon.db"); d != nil {
		t.Errorf("nothing is there: %+v", d)
	}
}
