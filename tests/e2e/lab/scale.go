package lab

import "time"

// Limits for bmv2 where it shares a few processors with everything else: it has queues of 64
// packets per port, empties them slowly, and needs seconds to start. Labs with bmv2 have no other
// differences: tests check the same.
const (
	bmv2Rate      = 40_000_000 // bits per second that a host sends at most
	bmv2Burst     = 16 << 10   // bytes of that in a burst
	bmv2Window    = "window=32"
	bmv2Share     = 4 // a test moves 1/4 of the data
	bmv2DeadAfter = 24 * time.Second
)

// Share returns how much of n (bytes or operations) a test of large amounts should do: all, or less
// where switches are slow.
func (l *Lab) Share(n int) int {
	if l.Spec.BMv2 {
		return n / bmv2Share
	}
	return n
}
