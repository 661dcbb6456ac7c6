package rc

// Holds reports whether a work request that is not complete yet names memory
// for which in returns true. A device asks before it lets go of a memory
// region.
func (q *QP) Holds(in func(mem []byte) bool) bool {
	return q.req.sq.holds(in) || q.resp.rq.holds(in)
}

func (q *sendQueue) holds(in func([]byte) bool) bool {
	for i := q.done; i != q.tail; i++ {
		if anyOf(q.at(i).gather, in) {
			return true
		}
	}
	return false
}

func (q *recvQueue) holds(in func([]byte) bool) bool {
	for i := q.done; i != q.tail; i++ {
		if anyOf(q.at(i).scatter, in) {
			return true
		}
	}
	return false
}

func anyOf(pieces [][]byte, in func([]byte) bool) bool {
	for _, p := range pieces {
		if in(p) {
			return true
		}
	}
	return false
}
