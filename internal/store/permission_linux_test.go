package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAnothersFile: the error of a file or directory of another user says what to do. The thread that opens them
// has the rights of another user meanwhile, should the test run as root.
func TestAnothersFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	if err := mustOpen(t, path, Options{}).Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // of testing
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, err := unix.SetfsuidRetUid(65534)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setfsuid(was); err != nil {
			t.Error(err)
		}
	}()
	for _, file := range []string{path, filepath.Join(dir, "new.db")} {
		_, err := Open(t.Context(), file, Options{})
		if checked := Check(file); !errors.Is(checked, fs.ErrPermission) || !strings.Contains(checked.Error(), "(chown)") {
			t.Errorf("%s: by Check: %v", file, checked)
		}
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), fmt.Sprintf("to the user of this program, %d now (chown)", os.Geteuid())) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestFullOrReadOnly: so do those of a full disk and of a read-only file system.
func TestFullOrReadOnly(t *testing.T) {
	for cause, want := range map[error]string{unix.ENOSPC: "make room", unix.EROFS: "make it writable"} {
		if err := advised(&fs.PathError{Op: "open", Path: "x", Err: cause}); !errors.Is(err, cause) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", cause, err)
		}
	}
}
