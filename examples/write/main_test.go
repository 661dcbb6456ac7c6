package main

import (
	"os"
	"path/filepath"
	"testing"
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
	for name, c := range map[string]struct {
		from, file string
		size       int
	}{
		"not this host": {"softroce:192.0.2.1", "", 1},
		"no such file":  {"softroce:127.32.0.1", filepath.Join(t.TempDir(), "none"), 0},
		"negative size": {"softroce:127.32.0.1", "", -1},
	} {
		if err := run(t.Context(), c.from, "softroce:127.32.0.2", c.file, c.size); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int{"0": 0, "4096": 4096, "64K": 64 << 10, "8M": 8 << 20, "1G": 1 << 30} {
		if n, err := parseSize(text); err != nil || n != want {
			t.Errorf("%s: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "M", "-1", "8T", "99999999999G"} {
		if n, err := parseSize(text); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
}
