package dashboard

import (
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	// trackLength is how many advances of a group's first member are remembered.
	trackLength = 128
	// trackSpan is how many packets they may span: half of where serial numbers turn.
	trackSpan = 1 << 22
)

// A track remembers when the first of a group's members had acknowledged what, to tell how
// long ago the first was where another is now.
type track struct{ samples []sample } // the oldest first

type sample struct {
	at  time.Time
	psn rocev2.PSN
}

// add records what the first member had acknowledged at a time.
func (t *track) add(at time.Time, first rocev2.PSN) {
	if n := len(t.samples); n > 0 {
		ahead := first.Sub(t.samples[n-1].psn)
		switch {
		case ahead == 0:
			return
		case ahead < 0: // the counts began anew
			t.samples = t.samples[:0]
		}
	}
	t.samples = append(t.samples, sample{at, first})
	drop := max(0, len(t.samples)-trackLength)
	for ; first.Sub(t.samples[drop].psn) > trackSpan; drop++ {
	}
	t.samples = append(t.samples[:0], t.samples[drop:]...)
}

// behind is how long ago the first had acknowledged more than a member has now: at least
// that long, and at most the time between two readings longer. If more is set, the time
// before the looks began is not known, and it may be any longer.
func (t *track) behind(now time.Time, member rocev2.PSN) (d time.Duration, more bool) {
	for i, s := range t.samples {
		if s.psn.After(member) {
			return now.Sub(s.at), i == 0
		}
	}
	return 0, false
}
