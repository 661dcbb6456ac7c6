package mcrdma

import "time"

// marks remember how many operations were complete at which time, for some while: who
// is told of a member's removal only after it wants to know from where on that one
// may lack something. They are pure. Times are those of the wall clock, which the
// daemon has too.
type marks struct {
	list [256]mark
	n    int // that were ever made
}

type mark struct {
	at       int64 // µs since 1970
	complete uint64
}

// markEvery is the least time between two marks: what was complete in between counts
// as not complete.
const markEvery = int64(2 * time.Millisecond / time.Microsecond)

// put says that so many operations are complete.
func (m *marks) put(at int64, complete uint64) {
	if m.n > 0 {
		// A clock that goes back makes what it says of later times doubtful.
		last := m.list[(m.n-1)%len(m.list)]
		if at < last.at {
			m.n = 0
		} else if at-last.at < markEvery {
			return
		}
	}
	m.list[m.n%len(m.list)] = mark{at, complete}
	m.n++
}

// before returns a number of operations that were complete at some time: as many as
// are known for sure, 0 if nothing is known of that time.
func (m *marks) before(at int64) uint64 {
	for i := m.n - 1; i >= max(0, m.n-len(m.list)); i-- {
		if x := m.list[i%len(m.list)]; x.at < at {
			return x.complete
		}
	}
	return 0
}
