package mcrdma

import (
	"errors"
	"sync"
	"time"
)

// kept is the number of events that are kept if the application does not read them.
const kept = 64

// An eventQueue keeps the newest events.
type eventQueue struct {
	mu     sync.Mutex
	c      chan Event
	closed bool
}

func newEventQueue() *eventQueue { return &eventQueue{c: make(chan Event, kept)} }

// lastEvent is Closed or Failed.
func lastEvent(why error, formation uint32) Event {
	e := Event{Type: EventFailed, Text: why.Error(), Formation: formation}
	if errors.Is(why, ErrClosed) {
		e.Type = EventClosed
	}
	return e
}

// put adds an event, in place of the oldest if the queue is full. Failed or Closed is the last
// one: it closes the channel.
func (q *eventQueue) put(e Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if len(q.c) == cap(q.c) {
		select {
		case <-q.c:
		default: // it has just been read
		}
	}
	e.Time = time.Now()
	q.c <- e // others only read
	if q.closed = e.Type == EventFailed || e.Type == EventClosed; q.closed {
		close(q.c)
	}
}
