package mcrdma

// marks remember how many operations were complete at which time: the sender learns of a
// member's removal only afterwards, and needs to know from where on the member may lack
// something. They are pure. Times are in µs, of a clock that the daemon shares and that
// cannot be set (package hostclock).
type marks struct {
	fine, coarse markRing
}

// A markRing keeps the last marks that are some time apart.
type markRing struct {
	list [256]mark
	n    int // marks ever made
}

type mark struct {
	at       int64
	complete uint64
}

const (
	fineMarks   = 2_000   // µs: half a second's at least
	coarseMarks = 100_000 // the last 25 seconds'
)

// put records that so many operations are complete.
func (m *marks) put(at int64, complete uint64) {
	m.fine.put(at, complete, fineMarks)
	m.coarse.put(at, complete, coarseMarks)
}

func (r *markRing) put(at int64, complete uint64, apart int64) {
	if r.n > 0 && at-r.list[(r.n-1)%len(r.list)].at < apart {
		return
	}
	r.list[r.n%len(r.list)] = mark{at, complete}
	r.n++
}

// before returns how many operations were certainly complete at a time; 0 if nothing is
// known of that time.
func (m *marks) before(at int64) uint64 { return max(m.fine.before(at), m.coarse.before(at)) }

func (r *markRing) before(at int64) uint64 {
	for i := r.n - 1; i >= max(0, r.n-len(r.list)); i-- {
		if x := r.list[i%len(r.list)]; x.at < at {
			return x.complete
		}
	}
	return 0
}
