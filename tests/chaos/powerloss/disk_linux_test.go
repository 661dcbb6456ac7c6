package powerloss

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLose: after a loss, synced data is there and no other, except unsynced data that is lucky.
func TestLose(t *testing.T) {
	for _, lucky := range []bool{false, true} {
		dir := t.TempDir()
		root := filepath.Join(dir, "root")
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(os.MkdirAll(filepath.Join(root, "sub"), 0o700))
		d, err := New(root, filepath.Join(dir, "keeps"))
		must(err)
		defer d.Close()
		sync := func(f *os.File) { must(d.Synced(os.Getpid(), int(f.Fd()))) } //nolint:gosec // a descriptor
		syncDir := func(name string) {
			f, err := os.Open(filepath.Join(root, name))
			must(err)
			sync(f)
			must(f.Close())
		}
		write := func(name, text string, synced bool) *os.File {
			f, err := os.OpenFile(filepath.Join(root, name), os.O_CREATE|os.O_RDWR, 0o600)
			must(err)
			_, err = f.WriteAt([]byte(text), 8192)
			must(err)
			if synced {
				sync(f)
			}
			return f
		}
		t.Setenv("TMPDIR", filepath.Dir(dir))
		syncDir("..") // a directory that contains the disk
		a := write("sub/a", "synced", true)
		write("sub/b", "not synced", false)
		syncDir("")
		syncDir("sub")
		write("sub/c", "its name is not", true)
		_, err = a.WriteAt([]byte("later, "), 8192)
		must(err)
		must(os.Remove(filepath.Join(root, "sub/b"))) // comes back
		write("elsewhere", "neither", false)
		must(d.Lose(func(string) bool { return lucky }))

		want := map[string]string{"sub/a": "synced", "sub/b": ""}
		if lucky {
			want = map[string]string{"sub/a": "later, ", "sub/b": "not synced"}
		}
		got := map[string]string{}
		must(filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				b, err := os.ReadFile(path)
				must(err)
				name, _ := filepath.Rel(root, path)
				got[name] = string(b[min(8192, len(b)):])
			}
			return err
		}))
		if len(got) != len(want) {
			t.Errorf("%q", got)
		}
		for name, text := range want {
			if got[name] != text {
				t.Errorf("lucky %v: %s: %q, want %q", lucky, name, got[name], text)
			}
		}
		var st unix.Stat_t
		must(unix.Stat(filepath.Join(root, "sub/a"), &st))
		if st.Blocks*512 > 8192 {
			t.Errorf("the hole takes space: %d blocks", st.Blocks)
		}
		must(d.Lose(func(string) bool { return false })) // what is there stays
		if _, err := os.Stat(filepath.Join(root, "sub/a")); err != nil {
			t.Error(err)
		}
	}
}
