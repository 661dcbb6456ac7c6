package udplink

import "time"

// A spinner says how long a receiver polls before it blocks. Being woken costs both ends more than the time between two bursts,
// so that polling pays as long as waits are short, and no other process needs the processor: a poll that took long was held up
// by one.
type spinner struct {
	limit time.Duration // of one wait
	eager bool          // the last wait was shorter
	begin time.Time     // of this wait
	last  time.Time     // try of this wait
	shy   time.Time     // until then others need the processor
}

const (
	heldUp  = 20 * time.Microsecond // a poll that takes longer was: it takes less than one
	shyFor  = 16                    // times as long as that, which is at most:
	longest = 10 * time.Millisecond
)

// start begins a wait.
func (s *spinner) start(now time.Time) { s.begin, s.last = now, now }

// again reports whether to poll once more.
func (s *spinner) again() bool {
	return s.eager && !s.last.Before(s.shy) && s.last.Sub(s.begin) < s.limit
}

// yielded takes in that other goroutines of this process have had a turn until now.
func (s *spinner) yielded(now time.Time) { s.last = now }

// polled takes in that a poll has ended.
func (s *spinner) polled(now time.Time) {
	if took := now.Sub(s.last); took > heldUp {
		s.shy = now.Add(shyFor * min(took, longest))
	}
	s.last = now
}

// end ends the wait: a packet has come.
func (s *spinner) end(now time.Time) { s.eager = now.Sub(s.begin) < s.limit }
