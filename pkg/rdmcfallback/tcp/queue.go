package tcp

import (
	"context"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

// A queue holds events that have not been fetched yet. Their number is bounded, because each peer's
// posted buffers, sends, readiness and messages are.
type queue struct {
	mu     sync.Mutex
	events []rdmcfallback.Event // from head on
	head   int
	closed bool
	wake   chan struct{} // has a token if there may be events
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

func (q *queue) push(e rdmcfallback.Event) {
	q.mu.Lock()
	if q.head > 0 && len(q.events) == cap(q.events) { // reuse the space of fetched events
		n := copy(q.events, q.events[q.head:])
		clear(q.events[n:])
		q.events, q.head = q.events[:n], 0
	}
	q.events = append(q.events, e)
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
	n = copy(events, q.events[q.head:])
	clear(q.events[q.head:][:n])
	if q.head += n; q.head == len(q.events) {
		q.events, q.head = q.events[:0], 0
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
