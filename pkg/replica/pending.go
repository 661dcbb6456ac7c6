package replica

import (
	"container/list"
	"sync"
	"time"
)

// pending has the times when the unanswered requests of this host's clients began, the oldest first.
type pending struct {
	mu    sync.Mutex
	begun list.List
}

// begin records that a request begins. The caller calls end when it is answered.
func (p *pending) begin() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.begun.PushBack(now())
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.begun.Remove(e)
	}
}

// oldest returns the age of the oldest; 0: there is none.
func (p *pending) oldest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.begun.Front(); e != nil {
		return now() - e.Value.(time.Duration)
	}
	return 0
}
