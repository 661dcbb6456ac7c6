package replica

// align is the alignment of entries in the ring, in bytes.
const align = 64

// A ring determines the offset of entries in the members' rings, which is the same at all of them.
// An entry is contiguous, and overwrites another only after all members have consumed that.
type ring struct {
	size       int64 // bytes
	head, tail int64 // total bytes allocated, and freed
	first      uint64
	ends       []int64           // of the entries from first on
	consumed   map[string]uint64 // by member: the last entry that it has consumed
}

// newRing makes a ring for the entries from first on.
func newRing(size int64, first uint64) *ring {
	return &ring{size: size, first: first, consumed: map[string]uint64{}}
}

// place allocates room for the next entry, of n bytes. It returns false if members must consume
// others first.
func (r *ring) place(n int64) (offset int64, ok bool) {
	n = (n + align - 1) / align * align
	if len(r.ends) == 0 {
		r.head, r.tail = 0, 0 // at the start again: members' memory that is not needed is never touched
	}
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

// consume records the last entry that a member has consumed. Claims about entries that were not
// placed are ignored.
func (r *ring) consume(member string, index uint64) {
	if was, ok := r.consumed[member]; ok && index > was && index <= r.last() {
		r.consumed[member] = index
	}
}

// free frees the entries up to done that all members have consumed.
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
