package mcrdma

import (
	"errors"
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

// end adds the last event.
func (q *eventQueue) end(why error, formation uint32) {
	q.put(lastEvent(why, formation))
	q.close()
}

// close ends the queue: nothing is added any more.
func (q *eventQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	close(q.c)
}

// lastEvent is Closed or Failed.
func lastEvent(why error, formation uint32) Event {
	e := Event{Type: Failed, Text: why.Error(), Formation: formation}
	if errors.Is(why, ErrClosed) {
		e.Type = Closed
	}
	return e
}

// put adds an event, and never waits. After the last one, nothing is added.
func (q *eventQueue) put(e Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.add(e)
	}
}

// add adds an event, in place of the oldest if the queue is full. q.mu is held.
func (q *eventQueue) add(e Event) {
	if len(q.c) == cap(q.c) {
		select {
		case <-q.c:
		default: // it has just been read
		}
	}
	e.Time = time.Now()
	q.c <- e // others only read
}
