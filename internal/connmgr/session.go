package connmgr

import (
	"crypto/rand"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A session is an application that has opened. All under Manager.mu.
type session struct {
	token   string
	user    user
	program string
	since   time.Time

	services map[string]struct{}
	groups   map[groupID]*group
	members  map[uint64]*member // by attach

	stream uint64 // number of the stream that has the session; 0: none, the application may come back
	over   bool
	queue  []*mcrdmav1.OpenResponse
	wake   chan struct{} // 1; read by the stream, and closed when another has taken the session
	ends   []end         // the last ones
}

// An end is why a group or a membership of a session has ended, if others have ended it.
// The application learns of it by an event, but it may ask for the group or membership
// before it reads that, above all when it comes back after a restart.
type end struct {
	group  groupID // or
	attach uint64  // of a membership; 0: it is a group
	why    *fault
}

// maxEnds is how many ends are remembered.
const maxEnds = 256

// noteEnd is called with Manager.mu.
func (s *session) noteEnd(e end) {
	if e.why == nil {
		return
	}
	if len(s.ends) >= maxEnds {
		s.ends = slices.Delete(s.ends, 0, 1)
	}
	s.ends = append(s.ends, e)
}

// whyEnded returns why a group (attach 0) or a membership has ended, and unknown if no end
// is remembered. It is called with Manager.mu.
func (s *session) whyEnded(id groupID, attach uint64, unknown *fault) *fault {
	for _, e := range s.ends {
		if e.attach == attach && (attach != 0 || e.group == id) {
			return e.why
		}
	}
	return unknown
}

// maxQueue is how many events may wait for an application.
const maxQueue = 4096

func newSession(token string, u user, program string, now time.Time) *session {
	return &session{token: token, user: u, program: program, since: now, services: map[string]struct{}{},
		groups: map[groupID]*group{}, members: map[uint64]*member{}, wake: make(chan struct{}, 1)}
}

// openSession gives a stream a session: that of the token if the caller's user has
// it, else a new one. It takes the session from a stream that had it.
func (m *Manager) openSession(u user, token, program string) (s *session, stream uint64, wake <-chan struct{}, resumed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	stream = m.attach.Add(1)
	if s = m.sessions[token]; s != nil && s.user.uid == u.uid {
		s.user.pid, s.program = u.pid, program
		close(s.wake)
		s.wake = make(chan struct{}, 1)
		resumed = true
	} else {
		if err := m.roomForSession(u.uid); err != nil {
			return nil, 0, nil, false, err
		}
		s = newSession(rand.Text(), u, program, m.clock.now())
		m.sessions[s.token] = s
	}
	s.stream = stream
	return s, stream, s.wake, resumed, nil
}

// sessionOf finds the session of a request. Another user's is not found.
func (m *Manager) sessionOf(u user, token string) (*session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[token]
	if s == nil || s.over || s.user.uid != u.uid {
		return nil, refuse(NotFound, "there is no such session: open one")
	}
	return s, nil
}

// signal is called with Manager.mu.
func (s *session) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// push queues an event. An application that does not read its events is given up.
// It is called with Manager.mu.
func (m *Manager) push(s *session, e *mcrdmav1.OpenResponse) {
	if s.over {
		return
	}
	if len(s.queue) >= maxQueue {
		m.log.Warn("an application does not read its events; its session ends", "program", s.program, "pid", s.user.pid)
		m.endSessionLocked(s, "the application does not read its events")
		return
	}
	s.queue = append(s.queue, e)
	s.signal()
}

// endSession ends a session and all that belongs to it, if the stream still has it.
func (m *Manager) endSession(s *session, stream uint64, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.over || s.stream != stream || m.stopping {
		return
	}
	m.endSessionLocked(s, why)
}

func (m *Manager) endSessionLocked(s *session, why string) {
	s.over = true
	s.queue = nil
	delete(m.sessions, s.token)
	for name := range s.services {
		delete(m.services, name)
	}
	for _, x := range s.members {
		m.endMember(x, mcrdmav1.Detached_REASON_UNSPECIFIED, why)
	}
	for _, g := range s.groups {
		m.abandon(g, mcrdmav1.Detached_REASON_SENDER_LOST, why)
	}
	s.signal()
	m.log.Info("a session has ended", "program", s.program, "pid", s.user.pid, "why", why)
}

// take returns what is queued, and whether the stream still has the session.
func (m *Manager) take(s *session, stream uint64) (list []*mcrdmav1.OpenResponse, mine bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.over || s.stream != stream {
		return nil, false
	}
	list, s.queue = s.queue, nil
	return list, true
}
