package replica

// align is what places in the ring are multiples of, in bytes.
const align = 64

// A ring says where in the members' rings entries go, which is the same place at all of them. An entry is
// contiguous, and overwrites another only when all members have consumed that.
type ring struct {
	size       int64 // bytes
	head, tail int64 // bytes that were ever taken, and given back
	first      uint64
	ends       []int64           // of the entries from first on
	consumed   map[string]uint64 // by member: it has consumed the entries up to this one
}

// newRing makes a ring for the entries from first on.
func newRing(size int64, first uint64) *ring {
	return &ring{size: size, first: first, consumed: map[string]uint64{}}
}

// place finds room for the next entry, of n bytes. It is false if members have to consume others before.
func (r *ring) place(n int64) (offset int64, ok bool) {
	n = (n + align - 1) / align * align
	at := r.head
	if left := r.size - at%r.size; left < n {
		at += left // it does not fit at the end
	}
	if at+n-r.tail > r.size {
		return 0, false
	}
	r.head = at + n
	r.ends = append(r.ends, r.head)
	return at % r.size, true
}

// last is the last entry that was placed.
func (r *ring) last() uint64 { return r.first + uint64(len(r.ends)) - 1 }

// consume says how far a member has consumed. What it says of entries that were not placed, does not count.
func (r *ring) consume(member string, index uint64) {
	if was, ok := r.consumed[member]; ok && index > was && index <= r.last() {
		r.consumed[member] = index
	}
}

// free gives back what all members have consumed, of the entries up to done.
func (r *ring) free(done uint64) {
	for _, c := range r.consumed {
		done = min(done, c)
	}
	n := 0
	for n < len(r.ends) && r.first <= done {
		r.tail = r.ends[n]
		r.first++
		n++
	}
	r.ends = append(r.ends[:0], r.ends[n:]...)
}
