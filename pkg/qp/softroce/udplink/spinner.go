package udplink

import (
	"sync/atomic"
	"time"
)

// A spinner decides how long a receiver polls before it blocks. Waking a blocked goroutine costs both
// ends more than the time between two bursts, so polling pays while waits are short and no other
// process needs the processor. A poll that took long was held up by such a process. Where the owner asks
// for polls, each lets other processes run before, as all of them may poll and none take long.
type spinner struct {
	limit time.Duration // of one wait
	short bool          // the last wait was shorter
	begin time.Time     // of this wait
	last  time.Time     // try of this wait
	busy  time.Time     // another process needs the processor until then

	opened time.Time
	until  atomic.Int64 // polls are asked for, nanoseconds after opened
}

const (
	heldUp    = 20 * time.Microsecond // a poll that takes longer was held up: it takes less than 1 µs
	othersRun = time.Millisecond      // … if others run before: they work, and do not only poll
	busyFor   = 16                    // the link blocks at once for this many times the delay, which counts up to longest
	longest   = 10 * time.Millisecond
)

// ask asks for polls for that long from now. Any goroutine may call it.
func (s *spinner) ask(now time.Time, d time.Duration) { s.until.Store(int64(now.Sub(s.opened) + d)) }

// asked reports whether the next poll is asked for.
func (s *spinner) asked() bool { return int64(s.last.Sub(s.opened)) < s.until.Load() }

// start begins a wait.
func (s *spinner) start(now time.Time) { s.begin, s.last = now, now }

// polls reports whether to poll once more.
func (s *spinner) polls(asked bool) bool {
	return !s.last.Before(s.busy) && (asked || s.short && s.last.Sub(s.begin) < s.limit)
}

// yielded records that other goroutines of this process have run until now.
func (s *spinner) yielded(now time.Time) { s.last = now }

// polled records that a poll has ended; if it was asked for, others have run before.
func (s *spinner) polled(now time.Time, asked bool) {
	most := heldUp
	if asked {
		most = othersRun
	}
	if took := now.Sub(s.last); took > most {
		s.busy = now.Add(busyFor * min(took, longest))
	}
	s.last = now
}

// end ends the wait: a packet has arrived.
func (s *spinner) end(now time.Time) { s.short = now.Sub(s.begin) < s.limit }
