package groups

import (
	"fmt"
	"slices"
)

// numbers allocates numbers from 1 to its limit, the lowest first. It is not for concurrent use.
type numbers struct {
	what  string
	used  []bool // by number; 0 is none
	low   int    // no number below is free
	count int
}

func newNumbers(what string, limit int) *numbers {
	n := &numbers{what: what, used: make([]bool, limit+1), low: 1}
	n.used[0] = true
	return n
}

// take allocates count consecutive numbers and returns the first.
func (n *numbers) take(count int) (uint16, error) {
	for i := n.low; i+count <= len(n.used); i++ {
		taken := slices.Index(n.used[i:i+count], true)
		if taken < 0 {
			n.mark(i, count, true)
			return uint16(i), nil //nolint:gosec // limit is 65535 at most
		}
		i += taken
	}
	return 0, fmt.Errorf("%w: the switch has %d %s, and %d are in use; %d more are needed", ErrLimit, len(n.used)-1, n.what, n.count, count)
}

func (n *numbers) mark(first, count int, used bool) {
	for i := first; i < first+count; i++ {
		switch {
		case n.used[i] == used:
			continue
		case used:
			n.count++
		default:
			n.count--
			n.low = min(n.low, i)
		}
		n.used[i] = used
	}
	for n.low < len(n.used) && n.used[n.low] {
		n.low++
	}
}

// free reports whether none of these numbers is in use.
func (n *numbers) free(first uint16, count int) bool {
	end := int(first) + count
	return end <= len(n.used) && !slices.Contains(n.used[first:end], true)
}

// keep marks numbers as in use.
func (n *numbers) keep(first uint16, count int) {
	if int(first)+count <= len(n.used) {
		n.mark(int(first), count, true)
	}
}

// give frees numbers.
func (n *numbers) give(first uint16, count int) {
	if first > 0 {
		n.mark(int(first), count, false)
	}
}
