package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
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

// TestNoFile: what is no file is refused at once, and nothing but that is said. Opening a pipe would wait for a writer.
func TestNoFile(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for file, says := range map[string]string{filepath.Join(dir, "none"): "no such file", dir: dir + " is not a regular file", pipe: pipe + " is not a regular file"} {
		for _, args := range [][]string{{"-n", "2", file}, {"--members", "127.0.0.1:1,127.0.0.1:2", file}} {
			s, err := parse(args)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- run(t.Context(), s) }()
			select {
			case err := <-done:
				if err == nil || !strings.HasSuffix(err.Error(), says) && !strings.Contains(err.Error(), says+" ") || strings.Contains(err.Error(), "receiver") {
					t.Errorf("%v: %v", args, err)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("%v: it waits", args)
			}
		}
	}
}
