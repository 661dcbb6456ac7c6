package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(inheritedFD) != "" { // a receiver of a test
		main()
	}
	os.Exit(m.Run())
}

// TestSmall: files of any size, also of none, come to all receivers as they are.
func TestSmall(t *testing.T) {
	for _, size := range []int{0, 1, 4095, 4097} {
		dir := t.TempDir()
		file, out := filepath.Join(dir, "small"), filepath.Join(dir, "out")
		want := bytes.Repeat([]byte{'s'}, size)
		if err := os.WriteFile(file, want, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := parse([]string{"-n", "3", "--out", out, file})
		if err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), s); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		for _, r := range []string{"receiver-1", "receiver-2", "receiver-3"} {
			if got, err := os.ReadFile(filepath.Join(out, r, "small")); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s has %d of %d bytes, %v", r, len(got), size, err)
			}
		}
	}
}
