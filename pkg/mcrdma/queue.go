package mcrdma

// An opQueue holds a sender's operations that are not complete, in their order: the
// oldest are posted in the present formation, the others not yet. It is pure.
//
// Messages are operations that complete at the receivers: all but WRITEs without
// immediate. They are numbered from 1, over all formations, and receivers count
// them too.
type opQueue struct {
	ops      ring[queued]
	posted   int    // in this formation; the oldest
	ever     int    // posted in this or another formation; the oldest
	messages uint64 // all that were pushed
	first    uint64 // number of the oldest operation
}

type queued struct {
	op      *Op
	message uint64 // messages up to this operation, itself included
}

// push adds an operation.
func (q *opQueue) push(op *Op) {
	if op.Kind.message() {
		q.messages++
	}
	q.ops.push(queued{op, q.messages})
}

// next returns the operation that is to be posted next; nil if there is none.
func (q *opQueue) next() *queued {
	if q.posted == q.ops.len() {
		return nil
	}
	return q.ops.at(q.posted)
}

// advance says that next was posted, and reports whether that was so before, in another
// formation.
func (q *opQueue) advance() (again bool) {
	q.posted++
	again = q.posted <= q.ever
	q.ever = max(q.ever, q.posted)
	return again
}

// pop takes out the oldest operation, which is complete.
func (q *opQueue) pop() *Op {
	q.posted = max(0, q.posted-1)
	q.ever = max(0, q.ever-1)
	q.first++
	return q.ops.pop().op
}

// rewind says that the formation is over: nothing is posted.
func (q *opQueue) rewind() { q.posted = 0 }

// sent returns how many messages were posted in all formations.
func (q *opQueue) sent() uint64 {
	if q.ever > 0 {
		return q.ops.at(q.ever - 1).message
	}
	return q.before(0)
}

// before returns how many messages come before the operation n places behind the oldest.
func (q *opQueue) before(n int) uint64 {
	if n == q.ops.len() {
		return q.messages
	}
	o := q.ops.at(n)
	if o.op.Kind.message() {
		return o.message - 1
	}
	return o.message
}

// had returns how many of the oldest operations are complete if all members have
// the first have messages: up to and including the last of these. What comes before a
// message at a receiver is complete there.
func (q *opQueue) had(have uint64) (n int) {
	for i := range q.ever {
		o := q.ops.at(i)
		if !o.op.Kind.message() {
			continue
		}
		if o.message > have {
			break
		}
		n = i + 1
	}
	return n
}
