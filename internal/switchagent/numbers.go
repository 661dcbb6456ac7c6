package switchagent

import (
	"fmt"
	"math/bits"
)

// numbers hands out numbers from 1 to its limit, the lowest first. It is not for
// concurrent use.
type numbers struct {
	what  string
	limit int
	used  []uint64 // a bit for each number
	low   int      // no number below is free
	count int
}

func newNumbers(what string, limit int) *numbers {
	n := &numbers{what: what, limit: limit, used: make([]uint64, limit/64+1), low: 1}
	n.used[0] = 1 // 0 is none
	return n
}

func (n *numbers) get(i int) bool { return n.used[i/64]&(1<<(i%64)) != 0 }

// take gives count consecutive numbers and returns the first.
func (n *numbers) take(count int) (uint16, error) {
	for i := n.low; i+count-1 <= n.limit; {
		if i%64 == 0 && n.used[i/64] == ^uint64(0) {
			i += 64
			continue
		}
		free := 0
		for free < count && !n.get(i+free) {
			free++
		}
		if free == count {
			n.mark(i, count, true)
			return uint16(i), nil //nolint:gosec // limit is 65535 at most
		}
		i += free + 1
	}
	return 0, fmt.Errorf("%w: the switch has %d %s, and %d are in use; %d more are needed", ErrLimit, n.limit, n.what, n.count, count)
}

func (n *numbers) mark(first, count int, used bool) {
	for i := first; i < first+count; i++ {
		switch {
		case n.get(i) == used:
		case used:
			n.used[i/64] |= 1 << (i % 64)
			n.count++
		default:
			n.used[i/64] &^= 1 << (i % 64)
			n.count--
			n.low = min(n.low, i)
		}
	}
	for n.low <= n.limit && n.get(n.low) {
		rest := ^n.used[n.low/64] >> (n.low % 64)
		n.low = min(n.low+max(1, bits.TrailingZeros64(rest)), (n.low/64+1)*64)
	}
}

// free says whether none of these numbers is in use.
func (n *numbers) free(first uint16, count int) bool {
	for i := int(first); i < int(first)+count; i++ {
		if i > n.limit || n.get(i) {
			return false
		}
	}
	return true
}

// keep takes numbers that are known to be in use.
func (n *numbers) keep(first uint16, count int) {
	if int(first)+count-1 <= n.limit {
		n.mark(int(first), count, true)
	}
}

// give returns numbers.
func (n *numbers) give(first uint16, count int) {
	if first > 0 {
		n.mark(int(first), count, false)
	}
}
