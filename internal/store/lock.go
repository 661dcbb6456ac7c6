package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mcrdma/mcrdma/internal/durable"
)

// lockPoll is the time between attempts to get the lock.
const lockPoll = 20 * time.Millisecond

// lock takes the file for this process. Another process has up to wait to release it.
func lock(ctx context.Context, f *os.File, wait time.Duration) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := durable.Lock(f)
		if !errors.Is(err, durable.ErrLocked) {
			return err
		}
		locked := fmt.Errorf("%w (waited %v): %w: end that process, or give this one another state file, by \"state\" in its configuration",
			ErrLocked, wait, err)
		if wait <= 0 {
			return locked
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return locked
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", locked, ctx.Err())
		}
	}
}
