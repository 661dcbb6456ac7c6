package routing

import (
	"context"
	"time"
)

// settle is how long after a change a source is read, so that a burst of changes costs one read.
const settle = 2 * time.Millisecond

// Follow calls read whenever there is a token in changed, but spends at most about half of its time
// on it, until ctx ends. After an error it calls failed, and reads again after a second.
func Follow(ctx context.Context, changed <-chan struct{}, read func() error, failed func(error)) {
	wait := func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		for pause := settle; pause > 0; {
			if !wait(pause) {
				return
			}
			start := time.Now()
			pause = 0
			if err := read(); err != nil {
				failed(err)
				pause = time.Second
			} else if !wait(time.Since(start)) {
				return
			}
		}
	}
}
