package store

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// lockPoll is the time between attempts to get the lock.
const lockPoll = 20 * time.Millisecond

// lock takes the file for this process, as bbolt does: by flock. Another process
// has up to wait to release it.
func lock(ctx context.Context, f *os.File, wait time.Duration) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) //nolint:gosec // a file descriptor
		switch {
		case err == nil:
			return nil
		case err == syscall.EINTR:
			continue
		case err != syscall.EWOULDBLOCK:
			return fmt.Errorf("locking: %w", err)
		}
		if wait <= 0 {
			return locked(f, wait)
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return locked(f, wait)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", locked(f, wait), ctx.Err())
		}
	}
}

func locked(f *os.File, wait time.Duration) error {
	return fmt.Errorf("%w (%s; waited %v): end that process, or give this one another state file, by \"state\" in its configuration",
		ErrLocked, holder(f), wait)
}

// holder says which process has the lock, as far as the kernel tells.
func holder(f *os.File) string {
	const unknown = "the kernel does not say which"
	locks, err := os.ReadFile("/proc/locks")
	info, statErr := f.Stat()
	if err != nil || statErr != nil {
		return unknown
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return unknown
	}
	lines := bufio.NewScanner(bytes.NewReader(locks))
	for lines.Scan() { // 1: FLOCK ADVISORY WRITE pid major:minor:inode start end
		w := strings.Fields(lines.Text())
		if len(w) < 6 || !strings.HasSuffix(w[5], fmt.Sprintf(":%d", st.Ino)) || w[4] == "0" || w[4] == "-1" {
			continue
		}
		name, err := os.ReadFile("/proc/" + w[4] + "/comm")
		if err != nil {
			return "process " + w[4]
		}
		return fmt.Sprintf("process %s, %s", w[4], bytes.TrimSpace(name))
	}
	return unknown
}
