package mcrdma

import (
	"sync"
	"time"
)

// kept is how many events are kept if the application doesn't read them.
const kept = 64

// An eventQueue keeps the newest events.
type eventQueue struct {
	mu     sync.Mutex
	c      chan Event
	closed bool
}

func newEventQueue() *eventQueue { return &eventQueue{c: make(chan Event, kept)} }

// put adds an event, and never waits. After last, nothing is added.
func (q *eventQueue) put(e Event, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	e.Time = time.Now()
	for {
		select {
		case q.c <- e:
			if last {
				q.closed = true
				close(q.c)
			}
			return
		default:
		}
		select {
		case <-q.c: // the oldest is lost
		default:
		}
	}
}
