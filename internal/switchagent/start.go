package switchagent

import (
	"context"
	"time"
)

// A wakeup wakes a goroutine for pending work; several calls before it runs wake it once.
type wakeup chan struct{}

func (w wakeup) wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// start is how far an agent has come since it began.
type start struct {
	at       time.Time
	adopted  stage // the switch has been read for the first time
	settled  stage // the routes are known
	restored stage // all steps have been made again
	forwards bool  // the switch had routes when it was adopted
}

func newStart() *start {
	return &start{adopted: make(stage), settled: make(stage), restored: make(stage)}
}

// A stage is a channel that is closed when the stage is reached.
type stage chan struct{}

func (s stage) reach() { close(s) }

func (s stage) reached() bool {
	select {
	case <-s:
		return true
	default:
		return false
	}
}

// wait waits until the stage is reached, and reports whether that was before the end of ctx.
func (s stage) wait(ctx context.Context) bool {
	select {
	case <-s:
		return true
	case <-ctx.Done():
		return s.reached()
	}
}
