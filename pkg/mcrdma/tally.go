package mcrdma

import (
	"sync/atomic"
	"time"
)

// A tally counts what a member posts.
type tally struct {
	posts, completions, strangers, violations atomic.Uint64
	mute                                      atomic.Bool  // the member no longer sends: its part has failed
	lastMove                                  atomic.Int64 // when an operation last completed, or began when none was in flight; ns since began
}

// began is a time of this process: times relative to it do not depend on the clock, which may be set.
var began = time.Now()

func (t *tally) move() { t.lastMove.Store(int64(time.Since(began))) }

func (t *tally) moved() time.Time { return began.Add(time.Duration(t.lastMove.Load())) }
