package links

import "math/bits"

const (
	// lossWindow is how many of a neighbor's last hellos count.
	lossWindow = 64
	// lossTold is the percentage of them from which on their loss is told. It is more than what one interruption costs that
	// the link survives: nine hellos, where the neighbor's agent is busy.
	lossTold = 20
)

// A loss is what is known of the loss of a neighbor's hellos, which it numbers. A link that loses many may stay up
// forever, because one in three is enough for that.
type loss struct {
	last  uint32 // number
	heard uint64 // bit i: whether number last-i was
	seen  int    // how many numbers count
}

// hear notes a hello; number 0 is that of a neighbor that does not number them.
func (l *loss) hear(number uint32) {
	gap := int(int32(number - l.last)) //nolint:gosec // numbers wrap
	switch {
	case number == 0:
		*l = loss{}
	case l.seen == 0:
		*l = loss{number, 1, 1}
	case gap > 0:
		*l = loss{number, l.heard<<gap | 1, min(l.seen+gap, lossWindow)}
	case -gap < lossWindow: // it was overtaken, or is a second copy
		l.heard |= 1 << -gap
	}
}

// percent returns how many of the last hellos were lost; 0 until there were enough.
func (l *loss) percent() int {
	if l.seen < lossWindow {
		return 0
	}
	return 100 * (lossWindow - bits.OnesCount64(l.heard)) / lossWindow
}
