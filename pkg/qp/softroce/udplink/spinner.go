package udplink

import "time"

// A spinner decides how long a receiver polls before it blocks. Waking a blocked goroutine costs both
// ends more than the time between two bursts, so polling pays while waits are short and no other
// process needs the processor. A poll that took long was held up by such a process.
type spinner struct {
	limit time.Duration // of one wait
	short bool          // the last wait was shorter
	begin time.Time     // of this wait
	last  time.Time     // try of this wait
	busy  time.Time     // another process needs the processor until then
}

const (
	heldUp  = 20 * time.Microsecond // a poll that takes longer was held up: it takes less than 1 µs
	busyFor = 16                    // the link blocks at once for this many times the delay, which counts up to longest
	longest = 10 * time.Millisecond
)

// start begins a wait.
func (s *spinner) start(now time.Time) { s.begin, s.last = now, now }

// polls reports whether to poll once more.
func (s *spinner) polls() bool {
	return s.short && !s.last.Before(s.busy) && s.last.Sub(s.begin) < s.limit
}

// yielded records that other goroutines of this process have run until now.
func (s *spinner) yielded(now time.Time) { s.last = now }

// polled records that a poll has ended.
func (s *spinner) polled(now time.Time) {
	if took := now.Sub(s.last); took > heldUp {
		s.busy = now.Add(busyFor * min(took, longest))
	}
	s.last = now
}

// end ends the wait: a packet has arrived.
func (s *spinner) end(now time.Time) { s.short = now.Sub(s.begin) < s.limit }
