package lab

import (
	"os"
	"path/filepath"
	"testing"
)

// TestTempDir: what a killed process has left goes with the next start; what is in use, and
// what is not a lab's, stays.
func TestTempDir(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	there := func(dir string) bool { _, err := os.Stat(dir); return err == nil }
	used, remove, err := TempDir()
	if err != nil {
		t.Fatal(err)
	}
	killed, foreign := filepath.Join(os.TempDir(), "mcrdma-lab-123"), filepath.Join(os.TempDir(), "mcrdma-123")
	for _, dir := range []string{killed, foreign} {
		if err := os.MkdirAll(filepath.Join(dir, "h1"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	next, removeNext, err := TempDir()
	if err != nil {
		t.Fatal(err)
	}
	if there(killed) || !there(foreign) || !there(used) || !there(next) {
		t.Errorf("killed %v, foreign %v, used %v, next %v", there(killed), there(foreign), there(used), there(next))
	}
	remove()
	removeNext()
	if there(used) || there(next) {
		t.Error("they are not removed at the end")
	}
}
