package mcrdma

import "github.com/mcrdma/mcrdma/internal/hostclock"

// lacks records from which operation on members that are out may lack some. It is pure.
type lacks struct {
	marks marks
	began uint64            // operations that were complete when the present formation began: all its members have them
	ended uint64            // operations that were complete when a formation ended last
	first map[string]uint64 // the first operation that a member may lack, by its address
}

// out notes that a member of the present formation is out. If since is not 0, operations
// may have completed without it since then; otherwise it is only not in the next formation.
// The first note counts.
func (l *lacks) out(address string, since int64) {
	if _, known := l.first[address]; known {
		return
	}
	n := l.ended
	if since != 0 {
		n = max(l.began, l.marks.before(since))
	}
	l.first[address] = n
}

// longAgo is a time before all marks.
const longAgo = -1 << 63

// since translates the time of a departure, which the daemon took by that clock. A time
// that cannot be compared with this process's clock counts as longAgo.
func since(at int64, clock string) int64 {
	if at != 0 && (clock == "" || clock != hostclock.Name() || at > hostclock.Now()) {
		return longAgo
	}
	return at
}
