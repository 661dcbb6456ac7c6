package mcrdma

import (
	"cmp"
	"fmt"
	"slices"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

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
	limited  bool   // the formation ends before operation until
	until    uint64

	window   window // of this formation
	underWay uint64 // packets
}

// mergedPackets is the limit of packets in flight if the daemon does not name one: pkg/ackmerge's.
const mergedPackets = 1 << 21

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

// A window is the limit of unacknowledged packets of a formation's switches.
type window struct {
	mtu  uint64 // bytes; 0: hosts relay, and there is no limit
	most uint64 // packets
}

// windowOf returns the window of a sender's connection through switches; for nil, that of relaying
// hosts.
func windowOf(c *mcrdmav1.Connection) window {
	most := max(uint64(cmp.Or(c.GetMaxPackets(), mergedPackets)), maxNudges+1) - maxNudges
	return window{uint64(c.GetMtu()), most}
}

// packets returns how many packets an operation takes; 0 if hosts relay.
func (w window) packets(op *Op) uint64 {
	if w.mtu == 0 {
		return 0
	}
	return max(1, (op.size+w.mtu-1)/w.mtu)
}

// fits returns an error if an operation has more packets than may be in flight.
func (w window) fits(op *Op) error {
	if n := w.packets(op); n > w.most {
		return fmt.Errorf("%w operation: %d bytes are %d packets of %d bytes, and the switches take %d that are not acknowledged: make it smaller, or have hosts relay",
			ErrLimit, op.size, n, w.mtu, w.most)
	}
	return nil
}

// next returns the next operation to post; nil if there is none, or it has to wait until others are complete.
func (q *opQueue) next() *queued {
	if q.posted == q.ops.len() || q.limited && q.first+uint64(q.posted) == q.until {
		return nil
	}
	o := q.ops.at(q.posted)
	if q.underWay > 0 && q.underWay+q.window.packets(o.op) > q.window.most {
		return nil
	}
	return o
}

// advance records that next was posted, and reports whether it was also posted before, in
// another formation.
func (q *opQueue) advance() (again bool) {
	q.underWay += q.window.packets(q.ops.at(q.posted).op)
	q.posted++
	again = q.posted <= q.ever
	q.ever = max(q.ever, q.posted)
	return again
}

// pop removes the oldest operation, which is complete.
func (q *opQueue) pop() *Op {
	op := q.ops.pop().op
	if q.posted > 0 {
		q.posted--
		q.underWay -= q.window.packets(op)
	}
	q.ever = max(0, q.ever-1)
	q.first++
	return op
}

// rewind records that the formation has ended: nothing is posted.
func (q *opQueue) rewind() { q.posted, q.underWay, q.limited = 0, 0, false }

// renumber numbers the messages of incomplete operations from have+1 on. It is for a
// formation without any receiver of the one before: its receivers count from have on, and
// have nothing of what was posted.
func (q *opQueue) renumber(have uint64) {
	shift := have - q.before(0)
	for i := range q.ops.len() {
		q.ops.at(i).message += shift
	}
	q.messages += shift
	q.ever = 0
}

// catchUp limits the formation to operations up to message most, and to those before number through.
func (q *opQueue) catchUp(most, through uint64) {
	q.limited, q.until = true, max(q.first+uint64(q.had(most)), through)
}

// tooLong returns the number after the last operation that has too many packets for a window; 0: none has.
func (q *opQueue) tooLong(w window) (through uint64) {
	for i := range q.ops.len() {
		if w.fits(q.ops.at(i).op) != nil {
			through = q.first + uint64(i) + 1
		}
	}
	return through
}

// caughtUp reports whether nothing is left for the formation to do.
func (q *opQueue) caughtUp() bool { return q.limited && q.first == q.until }

// stepsBack reports whether writing again the operations after message have would show older bytes
// to a member that has message most: if two of these operations write the same bytes, the member
// sees those of the first until the second arrives.
func (q *opQueue) stepsBack(have, most uint64) bool {
	var writes []*Op
	for i := q.had(have); i < q.had(most); i++ {
		if op := q.ops.at(i).op; !op.Kind.send() && op.size > 0 {
			writes = append(writes, op)
		}
	}
	slices.SortFunc(writes, func(a, b *Op) int {
		return cmp.Or(cmp.Compare(a.At.Region, b.At.Region), cmp.Compare(a.At.Offset, b.At.Offset))
	})
	for i := 1; i < len(writes); i++ {
		if a, b := writes[i-1], writes[i]; a.At.Region == b.At.Region && a.At.Offset+a.size > b.At.Offset {
			return true
		}
	}
	return false
}

// sent returns how many messages were posted in all formations.
func (q *opQueue) sent() uint64 {
	if q.ever > 0 {
		return q.ops.at(q.ever - 1).message
	}
	return q.before(0)
}

// before returns how many messages come before the operation n places after the oldest.
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
