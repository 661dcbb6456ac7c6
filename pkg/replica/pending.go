package replica

import (
	"sync"
	"time"
)

// pending are the unanswered requests of this host's clients, in a ring from the oldest to the
// newest.
type pending struct {
	mu   sync.Mutex
	ring place // is not a request: the oldest follows it
}

// place is a request's place in it.
type place struct {
	begun      time.Duration
	prev, next *place
}

func (p *pending) begin(x *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ring.next == nil {
		p.ring.prev, p.ring.next = &p.ring, &p.ring
	}
	x.begun, x.prev, x.next = now(), p.ring.prev, &p.ring
	x.prev.next, x.next.prev = x, x
}

func (p *pending) end(x *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x.prev.next, x.next.prev = x.next, x.prev
}

// oldest returns the age of the oldest; 0: there is none.
func (p *pending) oldest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := p.ring.next; x != nil && x != &p.ring {
		return now() - x.begun
	}
	return 0
}
