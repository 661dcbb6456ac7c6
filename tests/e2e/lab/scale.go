package lab

import "time"

// What bmv2 takes where it shares a few processors with all else: it has queues of 64
// packets for each port, empties them slowly, and needs seconds to start. This is all
// that differs in labs with it: what tests demand is the same.
const (
	bmv2Rate      = 40_000_000 // bits a second that a host sends at most
	bmv2Burst     = 16 << 10   // bytes of that at once
	bmv2Window    = "window=32"
	bmv2Share     = 4 // a test moves 1/4 of the data
	bmv2DeadAfter = 24 * time.Second
)

// Share returns how much a test of large amounts should do of n, bytes or operations:
// all of it, or less where switches are slow.
func (l *Lab) Share(n int) int {
	if l.Spec.BMv2 {
		return n / bmv2Share
	}
	return n
}
