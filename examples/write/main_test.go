package main

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mcrdma/mcrdma/internal/cmdline"
)

// The example is what the README has people run first, so it has to work: on
// addresses that no other test uses, in each receive mode, from memory and from
// a file.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, make([]byte, chunk+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		options, file string
		size          int
	}{
		"several chunks": {"", "", 20*chunk + 3},
		"nothing":        {"", "", 0},
		"unprivileged":   {"?rx=udp", "", 2 * chunk},
		"file":           {"", file, 0},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), "softroce:127.32.0.1"+c.options, "softroce:127.32.0.2"+c.options, c.file, c.size)
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestRunErrors(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		from, file string
		size       int
	}{
		"not this host": {"softroce:192.0.2.1", "", 1},
		"no such file":  {"softroce:127.32.0.1", filepath.Join(t.TempDir(), "none"), 0},
		"a pipe":        {"softroce:127.32.0.1", pipe, 0},
		"negative size": {"softroce:127.32.0.1", "", -1},
	} {
		if err := run(t.Context(), c.from, "softroce:127.32.0.2", c.file, c.size); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestUsage: it is called as the commands are.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-size", "8M"}, {"--size", "8T"}, {"some.iso"}} {
		if err := command(t.Context(), args); !errors.As(err, new(cmdline.UsageError)) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
