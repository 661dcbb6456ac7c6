package replica

import "sync"

// A mailbox has functions carried out one at a time, in the order of post. After each, after is called.
type mailbox struct {
	inline bool // who posts while none is carried out does so itself; else run does
	after  func()

	mu     sync.Mutex
	posted []func()
	spare  []func()
	busy   bool // a goroutine carries out what is posted, or has been woken for it
	closed bool
	wake   chan struct{}
}

// newMailbox makes one in which nothing is carried out before run.
func newMailbox(inline bool, after func()) *mailbox {
	return &mailbox{inline: inline, after: after, busy: true, wake: make(chan struct{}, 1)}
}

// post has f carried out. After close it is not. It does not wait for others; inline, it may carry out f and what others
// post until it has begun, as if the caller were the loop, and so spares the way to another goroutine and back. What comes
// meanwhile is left to run: a caller is not held up by others.
func (m *mailbox) post(f func()) { m.offer(f) }

// offer is post that says whether f is carried out.
func (m *mailbox) offer(f func()) bool {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	m.posted = append(m.posted, f)
	mine := !m.busy
	m.busy = true
	m.mu.Unlock()
	if mine && (!m.inline || m.batch()) {
		m.wake <- struct{}{}
	}
	return true
}

// batch carries out what is posted by now, and says whether run has to go on.
func (m *mailbox) batch() bool {
	m.mu.Lock()
	list := m.posted
	m.posted, m.spare = m.spare, nil
	m.mu.Unlock()
	for i, f := range list {
		f()
		m.after()
		list[i] = nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spare = list[:0]
	m.busy = len(m.posted) > 0 || m.closed
	return m.busy
}

// close has nothing more be posted. What was posted is carried out.
func (m *mailbox) close() {
	m.mu.Lock()
	mine := !m.busy && !m.closed
	m.busy, m.closed = true, true
	m.mu.Unlock()
	if mine {
		m.wake <- struct{}{}
	}
}

// run carries out what is posted, until close. When it returns, none is carried out.
func (m *mailbox) run() {
	for {
		for m.batch() {
			if m.ended() {
				return
			}
		}
		<-m.wake
	}
}

func (m *mailbox) ended() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed && len(m.posted) == 0
}
