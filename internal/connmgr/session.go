package connmgr

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/unixsock"
)

// A session is an application that has called Open. Its groups and memberships are in the tables of
// those.
type session struct {
	token    string
	uid      uint32
	since    time.Time
	creating *semaphore.Weighted
	deaf     func() // called once the queue is full

	mu      sync.Mutex
	pid     uint32
	program string
	views   bool // the application calls AckView
	ended   bool
	queue   []*mcrdmav1.OpenResponse
	wake    chan struct{} // 1; read by the stream that has the session, and closed when another has taken it; nil: none has, the application may reconnect
	ends    []end         // the last ones
}

// An end is the reason why others have ended a group or a membership of a session. The application
// learns it by an event, but it may ask for the group or membership before it reads the event, for
// example when it reconnects after a restart.
type end struct {
	group  groupID // or
	attach uint64  // of a membership; 0: it is a group
	why    *failure.Error
}

// maxEnds is the number of ends that are remembered.
const maxEnds = 256

// maxQueue is the maximum number of events queued for an application.
const maxQueue = 4096

func newSession(r machine.Owner, now time.Time) *session {
	return &session{token: r.Token, uid: r.UID, pid: r.PID, program: r.Program, since: now, creating: semaphore.NewWeighted(maxCreating)}
}

// record is the session as stored with groups and memberships.
func (s *session) record() machine.Owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	return machine.Owner{Token: s.token, UID: s.uid, PID: s.pid, Program: s.program}
}

func (s *session) noteEnd(e end) {
	if e.why == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ends) >= maxEnds {
		s.ends = slices.Delete(s.ends, 0, 1)
	}
	s.ends = append(s.ends, e)
}

// whyEnded returns why a group (attach 0) or a membership has ended, and unknown if no end
// is remembered.
func (s *session) whyEnded(id groupID, attach uint64, unknown *failure.Error) *failure.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.ends {
		if e.attach == attach && (attach != 0 || e.group == id) {
			return e.why
		}
	}
	return unknown
}

// push queues an event. If an application does not read its events, its session ends.
func (s *session) push(e *mcrdmav1.OpenResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
	case len(s.queue) >= maxQueue:
		s.ended, s.queue = true, nil
		s.signal()
		s.deaf()
	default:
		s.queue = append(s.queue, e)
		s.signal()
	}
}

// detached tells the application that a membership has ended, unless it need not know the reason
// (UNSPECIFIED). If the application has not fetched the request to join yet, that is removed
// instead, so that a sender that repeatedly asks and gives up does not fill the queue.
func (s *session) detached(e machine.TellEnded) {
	unasked := e.Asked && s.takeBack(func(q *mcrdmav1.OpenResponse) bool { return q.GetAttachRequested().GetAttach() == e.Attach })
	if unasked || e.Reason == mcrdmav1.Detached_REASON_UNSPECIFIED {
		return
	}
	s.noteEnd(end{attach: e.Attach, why: detachedError(e.Reason, e.Text)})
	s.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_Detached{
		Detached: &mcrdmav1.Detached{Attach: e.Attach, Reason: e.Reason, Text: e.Text}}})
}

// takeBack removes events that the application has not fetched; false: there were none.
func (s *session) takeBack(which func(*mcrdmav1.OpenResponse) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.queue)
	s.queue = slices.DeleteFunc(s.queue, which)
	return len(s.queue) < n
}

// detachedError is the error for an application that asks for a membership that has ended for that
// reason; nil: it need not know.
func detachedError(reason mcrdmav1.Detached_Reason, text string) *failure.Error {
	switch reason {
	case mcrdmav1.Detached_REASON_CLOSED:
		return failure.New(mcrdmav1.Reason_CLOSED, "the sender has closed the group")
	case mcrdmav1.Detached_REASON_REMOVED:
		return failure.New(mcrdmav1.Reason_REMOVED, "%s", text)
	case mcrdmav1.Detached_REASON_SENDER_LOST:
		return failure.New(mcrdmav1.Reason_SENDER_LOST, "%s", text)
	}
	return nil
}

// signal is called with session.mu.
func (s *session) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns what is queued, and whether the stream that reads wake still has the session.
func (s *session) take(wake chan struct{}) (list []*mcrdmav1.OpenResponse, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.wake != wake {
		return nil, false
	}
	list, s.queue = s.queue, nil
	return list, true
}

// takeOver gives the session to a stream, which reads wake; nil: the session has ended.
func (s *session) takeOver(pid uint32, program string, views bool) (wake chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	if s.wake != nil {
		close(s.wake)
	}
	s.pid, s.program, s.views, s.wake = pid, program, views, make(chan struct{}, 1)
	return s.wake
}

// isEnded reports whether the session has ended. Its groups and memberships end soon after.
func (s *session) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// acksViews says whether the application calls AckView.
func (s *session) acksViews() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.views
}

// finish ends the session, if the stream that reads wake (nil: no stream) still has it.
func (s *session) finish(wake chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.wake != wake {
		return false
	}
	s.ended, s.queue = true, nil
	s.signal()
	return true
}

func (s *session) describe(services []string) *mcrdmav1.SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &mcrdmav1.SessionInfo{Program: s.program, Uid: s.uid, Pid: s.pid, Services: services, Since: timestamppb.New(s.since), Lost: s.wake == nil}
}

// sessions are all applications of the host.
type sessions struct {
	log  *slog.Logger
	over func(s *session, why string) // ends in the background what belongs to a session that has ended

	mu       sync.Mutex
	byToken  map[string]*session
	services map[string]*session // by name
	gone     map[string]string   // the last listeners that have ended, by service; at most maxEnded
}

func newSessions(log *slog.Logger, over func(s *session, why string)) *sessions {
	return &sessions{log: log, over: over, byToken: map[string]*session{}, services: map[string]*session{}, gone: map[string]string{}}
}

// open gives a session to a stream: that of the token if it belongs to the caller's user, else a
// new one. A previous stream loses the session.
func (t *sessions) open(u unixsock.User, token, program string, views bool) (s *session, wake chan struct{}, resumed bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s = t.byToken[token]; s != nil && s.uid == u.UID {
		wake = s.takeOver(u.PID, program, views)
	}
	if resumed = wake != nil; !resumed {
		if err := t.room(u.UID); err != nil {
			return nil, nil, false, err
		}
		s = t.add(machine.Owner{Token: rand.Text(), UID: u.UID})
		wake = s.takeOver(u.PID, program, views)
	}
	return s, wake, resumed, nil
}

// add is called with sessions.mu.
func (t *sessions) add(r machine.Owner) *session {
	s := newSession(r, time.Now())
	s.deaf = func() {
		t.log.Warn("an application does not read its events; its session ends", "program", s.program, "pid", s.pid)
		t.over(s, "the application does not read its events")
	}
	t.byToken[s.token] = s
	return s
}

// restore returns the session of a record from before a restart.
func (t *sessions) restore(r machine.Owner) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byToken[r.Token]; s != nil {
		return s
	}
	return t.add(r)
}

// find returns the session with a token; nil: there is none.
func (t *sessions) find(token string) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byToken[token]
}

// of finds the session of a request. Another user's is not found.
func (t *sessions) of(u unixsock.User, token string) (*session, error) {
	if s := t.find(token); s != nil && s.uid == u.UID && !s.isEnded() {
		return s, nil
	}
	return nil, failure.New(mcrdmav1.Reason_NOT_FOUND, "there is no such session: open one")
}

// remove forgets a session that has ended.
func (t *sessions) remove(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byToken, s.token)
	for _, service := range t.servicesOf(s) {
		delete(t.services, service)
		if len(t.gone) >= maxEnded {
			clear(t.gone)
		}
		t.gone[service] = s.process()
	}
}

// maxEnded is the number of ended applications that are remembered.
const maxEnded = 1024

// ended returns the application that listened for a service and has ended; "": none is remembered.
func (t *sessions) ended(service string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.services[service]; s != nil {
		return s.process()
	}
	return t.gone[service]
}

// process returns the application's name and process.
func (s *session) process() string {
	r := s.record()
	return fmt.Sprintf("process %d (%s)", r.PID, r.Program)
}

// all returns the sessions.
func (t *sessions) all() []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.byToken))
}

// maxSessions is the maximum number of applications of one user.
const maxSessions = 1024

// room is called with sessions.mu.
func (t *sessions) room(uid uint32) error {
	n := 0
	for _, s := range t.byToken {
		if s.uid == uid {
			n++
		}
	}
	if n >= maxSessions {
		return failure.New(mcrdmav1.Reason_LIMIT, "user %d has %d sessions, and is allowed no more: end some", uid, n)
	}
	return nil
}

// maxServices is the maximum number of services of one application.
const maxServices = 1024

// listen offers a service. A service belongs to one application. A call that was given up offers
// nothing after that: the application may have withdrawn the offer already.
func (t *sessions) listen(ctx context.Context, s *session, service string) error {
	if err := machine.CheckService(service); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.services[service]; o != nil && o != s {
		return failure.New(mcrdmav1.Reason_DENIED, "another application listens for the service %q, %s: choose another name, or end that one", service, o.process())
	}
	if n := len(t.servicesOf(s)); n >= maxServices {
		return failure.New(mcrdmav1.Reason_LIMIT, "the application listens for %d services, and no more are allowed", n)
	}
	if s.isEnded() {
		return failure.New(mcrdmav1.Reason_NOT_FOUND, "the session has ended")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	t.services[service] = s
	delete(t.gone, service)
	return nil
}

// servicesOf is called with sessions.mu.
func (t *sessions) servicesOf(s *session) (out []string) {
	for name, o := range t.services {
		if o == s {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (t *sessions) unlisten(s *session, service string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.services[service] != s {
		return failure.New(mcrdmav1.Reason_NOT_FOUND, "the application does not listen for the service %q", failure.Clip(service, failure.MaxName))
	}
	delete(t.services, service)
	return nil
}

// listener returns the session that listens for a service; nil: there is none.
func (t *sessions) listener(service string) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.services[service]; s != nil && !s.isEnded() {
		return s
	}
	return nil
}

// seen returns the sessions that a user may see, the oldest first.
func (t *sessions) seen(u unixsock.User) []*session {
	list := slices.DeleteFunc(t.all(), func(s *session) bool { return !u.May(s.uid) })
	slices.SortFunc(list, func(x, y *session) int { return x.since.Compare(y.since) })
	return list
}

// describe returns the sessions that a user may see, the oldest first.
func (t *sessions) describe(u unixsock.User) (out []*mcrdmav1.SessionInfo) {
	list := t.seen(u)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range list {
		out = append(out, s.describe(t.servicesOf(s)))
	}
	return out
}
