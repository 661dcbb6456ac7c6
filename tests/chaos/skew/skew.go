// Package skew makes Go programs use a clock that a test can set, without a hook in
// them: they are built with a package time whose Now adds what is in a file, which may
// change at any time. That package is made from the one that is installed, for "go build
// -overlay". Timers and measured times follow the monotonic clock, as they do when the
// system's clock is set.
package skew

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Variable is the environment variable with the file's name; without it, programs use the system's
// clock.
const Variable = "MCRDMA_SKEW"

// The replacements in time.go.
const (
	anchor = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {"
	ours   = "\tsec, nsec, mono := skewedNow()\n\tif mono == 0 {"
)

const added = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

// skew is how far Now is ahead of the system's clock, in nanoseconds.
var skew = mapSkew()

func mapSkew() *int64 {
	name, ok := syscall.Getenv("` + Variable + `")
	if !ok {
		return new(int64)
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("` + Variable + `: " + name + ": " + err.Error())
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("` + Variable + `: mmap: " + err.Error())
	}
	syscall.Close(fd)
	return (*int64)(unsafe.Pointer(&b[0]))
}

func skewedNow() (sec int64, nsec int32, mono int64) {
	sec, nsec, mono = runtimeNow()
	n := int64(nsec) + atomic.LoadInt64(skew)
	sec += n / 1e9
	if n %= 1e9; n < 0 {
		sec--
		n += 1e9
	}
	return sec, int32(n), mono
}
`

// Overlay writes the input of "go build -overlay" to dir, and returns the file's name. It fails if
// the installed package time is not as expected.
func Overlay(dir string) (string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("skew: go env GOROOT: %w", err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(source, "time.go"))
	if err != nil {
		return "", fmt.Errorf("skew: %w", err)
	}
	skewed, err := replace(string(text))
	if err != nil {
		return "", fmt.Errorf("skew: %s: %w", filepath.Join(source, "time.go"), err)
	}
	files := map[string]string{}
	for name, text := range map[string]string{"time.go": skewed, "skew.go": added} {
		file := filepath.Join(dir, "time-"+name)
		files[filepath.Join(source, name)] = file
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, b, 0o600)
}

// replace makes Now in time.go use skewedNow.
func replace(text string) (string, error) {
	if n := strings.Count(text, anchor); n != 1 {
		return "", fmt.Errorf("it has %q %d times, not once: this Go's Now is not known", anchor, n)
	}
	return strings.Replace(text, anchor, ours, 1), nil
}

// A Clock is the file that programs add to the system's clock.
type Clock struct{ f *os.File }

// NewClock makes a clock file of that name, which can be set at once.
func NewClock(name string) (*Clock, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	c := &Clock{f}
	return c, c.Set(0)
}

// Set sets how far the programs' time is ahead of the system's.
func (c *Clock) Set(ahead time.Duration) error {
	_, err := c.f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead)), 0) //nolint:gosec // its bits
	return err
}

// Name returns the name of the file.
func (c *Clock) Name() string { return c.f.Name() }

// Close closes the file. Programs keep the time that was last set.
func (c *Clock) Close() error { return c.f.Close() }
