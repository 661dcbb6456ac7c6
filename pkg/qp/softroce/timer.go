package softroce

import (
	"container/heap"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp/rc"
)

// timers has, for each queue pair with a deadline, an alarm at that time or earlier. Postponing a
// deadline, as every ACK does with the ACK timer, costs nothing: the alarm fires early and is set
// again. timers also collects the completion queues that have overrun: the goroutine that detects
// an overrun holds the lock of one queue pair, and so cannot fail the others.
type timers struct {
	mu     sync.Mutex
	heap   alarmHeap
	sets   uint64        // how often an alarm was set
	asleep time.Duration // when the timer goroutine wakes
	broken []*CQ
	wake   chan struct{}
}

// An alarm is the entry of a queue pair, guarded by timers.mu.
type alarm struct {
	at    time.Duration
	seq   uint64 // alarms at the same time go off in the order in which they were set
	index int    // in the heap, -1 if not there
	qp    *QP
}

type alarmHeap []*alarm

func (h alarmHeap) Len() int { return len(h) }
func (h alarmHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *alarmHeap) Push(x any) {
	a := x.(*alarm)
	a.index = len(*h)
	*h = append(*h, a)
}
func (h *alarmHeap) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	a.index = -1
	return a
}

func (t *timers) init() { t.wake, t.asleep = make(chan struct{}, 1), rc.Never }

// set sets a's alarm to at, unless it goes off earlier.
func (t *timers) set(a *alarm, at time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sets++
	switch {
	case a.index < 0:
		a.at, a.seq = at, t.sets
		heap.Push(&t.heap, a)
	case at < a.at:
		a.at, a.seq = at, t.sets
		heap.Fix(&t.heap, a.index)
	}
	if at < t.asleep {
		t.asleep = at
		t.rouse()
	}
}

// unset removes a's alarm.
func (t *timers) unset(a *alarm) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.index >= 0 {
		heap.Remove(&t.heap, a.index)
	}
}

// report passes on a completion queue that has overrun.
func (t *timers) report(c *CQ) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = append(t.broken, c)
	t.rouse()
}

func (t *timers) rouse() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// due returns an alarm that is due, or else a broken completion queue. If there is neither, it
// returns the time until which to sleep.
func (t *timers) due(now time.Duration) (*QP, *CQ, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asleep = 0 // awake: no wakeup needed
	if n := len(t.broken); n > 0 {
		c := t.broken[n-1]
		t.broken = t.broken[:n-1]
		return nil, c, 0
	}
	if len(t.heap) == 0 {
		t.asleep = rc.Never
	} else if t.heap[0].at > now {
		t.asleep = t.heap[0].at
	} else {
		return heap.Pop(&t.heap).(*alarm).qp, nil, 0
	}
	return nil, nil, t.asleep
}
