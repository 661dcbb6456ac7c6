package tcp

import (
	"context"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

// A queue holds events that have not been fetched yet. Their number is bounded, because
// posted buffers, sends, readiness and messages of each peer are.
type queue struct {
	mu     sync.Mutex
	ring   []rdmcfallback.Event
	head   int // the oldest
	n      int
	closed bool
	wake   chan struct{} // has a token if there may be something to fetch
}

func newQueue() *queue {
	return &queue{ring: make([]rdmcfallback.Event, 64), wake: make(chan struct{}, 1)}
}

func (q *queue) push(e rdmcfallback.Event) {
	q.mu.Lock()
	if q.n == len(q.ring) {
		bigger := make([]rdmcfallback.Event, 2*q.n)
		k := copy(bigger, q.ring[q.head:])
		copy(bigger[k:], q.ring[:q.head])
		q.ring, q.head = bigger, 0
	}
	q.ring[(q.head+q.n)%len(q.ring)] = e
	q.n++
	q.mu.Unlock()
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}

// take moves events to the front of events.
func (q *queue) take(events []rdmcfallback.Event) (n int, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for n < len(events) && q.n > 0 {
		events[n], q.ring[q.head] = q.ring[q.head], rdmcfallback.Event{}
		q.head = (q.head + 1) % len(q.ring)
		q.n--
		n++
	}
	return n, q.closed
}

// wait takes events, at least one if there is no error.
func (q *queue) wait(ctx context.Context, events []rdmcfallback.Event) (int, error) {
	for {
		n, closed := q.take(events)
		if closed {
			return 0, ErrClosed
		}
		if n > 0 {
			return n, nil
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
