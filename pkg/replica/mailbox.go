package replica

import "sync"

// A mailbox has functions carried out by one goroutine, in the order of post, which does not wait.
type mailbox struct {
	mu     sync.Mutex
	posted []func()
	closed bool
	wake   chan struct{}
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

// post has f carried out. After close it is not.
func (m *mailbox) post(f func()) {
	m.mu.Lock()
	if !m.closed {
		m.posted = append(m.posted, f)
	}
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// take returns what was posted, in exchange for an empty slice. It is false after close, when nothing is left.
func (m *mailbox) take(empty []func()) (posted []func(), ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	posted, m.posted = m.posted, empty
	return posted, len(posted) > 0 || !m.closed
}

// close has nothing more be posted. What was posted is carried out.
func (m *mailbox) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run carries out what is posted until close, and calls after behind each.
func (m *mailbox) run(after func()) {
	var list []func()
	for {
		posted, ok := m.take(list[:0])
		if !ok {
			return
		}
		if list = posted; len(list) == 0 {
			<-m.wake
		}
		for i, f := range list {
			f()
			after()
			list[i] = nil
		}
	}
}
