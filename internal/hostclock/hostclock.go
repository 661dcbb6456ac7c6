// Package hostclock is a clock that the processes of one host can compare, and that
// cannot be set: CLOCK_MONOTONIC of Linux.
package hostclock

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Now returns the time in µs since some time in the past.
func Now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has it
	}
	return t.Nano() / 1000
}

// Name says which clock Now reads: that of this boot and time namespace. Times can be
// compared if their clocks have the same name, and it is not empty. It is empty where
// /proc does not say.
var Name = sync.OnceValue(func() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	namespace, err := os.Readlink("/proc/self/ns/time")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // Linux before 5.6 has no time namespaces
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + namespace
})
