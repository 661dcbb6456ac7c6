package replica

import "sync"

// A mailbox runs functions one at a time, in the order of post. After each, it calls after.
type mailbox struct {
	inline bool // a poster runs functions itself if no other goroutine does; otherwise run does
	after  func()

	mu     sync.Mutex
	posted []func()
	spare  []func()
	busy   bool // a goroutine runs the posted functions, or has been woken to do so
	closed bool
	wake   chan struct{}
}

// newMailbox returns a mailbox that runs nothing before run is called.
func newMailbox(inline bool, after func()) *mailbox {
	return &mailbox{inline: inline, after: after, busy: true, wake: make(chan struct{}, 1)}
}

// post queues f. After close, f does not run. post does not wait for other functions. With inline,
// it may run f, and functions posted before that, in the caller's goroutine, which saves two
// goroutine switches. Functions posted meanwhile are left to run, so that others cannot delay the
// caller.
func (m *mailbox) post(f func()) { m.offer(f) }

// offer is post, and reports whether f will run.
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

// await is post. The channel is closed when f has run.
func (m *mailbox) await(f func()) <-chan struct{} {
	done := make(chan struct{})
	m.post(func() {
		f()
		close(done)
	})
	return done
}

// batch runs the functions posted so far, and reports whether run must continue.
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

// close stops further posts. Functions posted before still run.
func (m *mailbox) close() {
	m.mu.Lock()
	mine := !m.busy && !m.closed
	m.busy, m.closed = true, true
	m.mu.Unlock()
	if mine {
		m.wake <- struct{}{}
	}
}

// run runs posted functions until close. When it returns, none is running.
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
