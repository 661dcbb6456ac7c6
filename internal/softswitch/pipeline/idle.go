package pipeline

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"time"
)

// never is a time before all others.
const never = time.Duration(math.MinInt64)

// idleQueue is a heap of the entries with an idle timeout, ordered by a time before which they
// cannot expire. Packets do not change it: they only set LastHit, which is checked at that time.
type idleQueue struct{ h idleHeap }

// schedule adds, moves or removes an entry, according to its timeout.
func (q *idleQueue) schedule(e *Entry) {
	if e.IdleTimeout <= 0 {
		q.drop(e)
		return
	}
	e.deadline = e.due()
	if e.heapAt == 0 {
		heap.Push(&q.h, e)
	} else {
		heap.Fix(&q.h, e.heapAt-1)
	}
}

func (q *idleQueue) drop(e *Entry) {
	if e.heapAt != 0 {
		heap.Remove(&q.h, e.heapAt-1)
	}
}

func (q *idleQueue) expired(now time.Duration) []Expired {
	var out []Expired
	for len(q.h) > 0 && q.h[0].deadline <= now {
		e := q.h[0]
		if e.due() <= now { // else it was hit meanwhile
			out = append(out, Expired{e.table, e})
			e.reported = now
		}
		e.deadline = e.due()
		heap.Fix(&q.h, 0)
	}
	slices.SortStableFunc(out, func(a, b Expired) int { return cmp.Compare(a.Entry.LastHit, b.Entry.LastHit) })
	return out
}

// due returns when the entry becomes idle, or has been idle for one more timeout, if no packet hits
// it.
func (e *Entry) due() time.Duration { return after(max(e.LastHit, e.reported), e.IdleTimeout) }

// after adds without overflow.
func after(t, d time.Duration) time.Duration {
	if t > math.MaxInt64-d {
		return math.MaxInt64
	}
	return t + d
}

// idleHeap implements heap.Interface.
type idleHeap []*Entry

func (h idleHeap) Len() int           { return len(h) }
func (h idleHeap) Less(i, j int) bool { return h[i].deadline < h[j].deadline }
func (h idleHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i+1, j+1
}

func (h *idleHeap) Push(x any) {
	e := x.(*Entry)
	*h = append(*h, e)
	e.heapAt = len(*h)
}

func (h *idleHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.heapAt = 0
	return e
}
