package connmgr

import (
	"context"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A groupID names a group for all its life.
type groupID struct {
	source netip.Addr
	number uint64
}

func (id groupID) proto() *mcrdmav1.GroupID {
	return &mcrdmav1.GroupID{Source: id.source.String(), Number: id.number}
}

type memberState uint8

const (
	asked  memberState = iota // the application has not answered yet
	ready                     // it can receive
	formed                    // the formation is complete
)

// A member is the membership of an application of this host in a formation. All
// under Manager.mu.
type member struct {
	memberRecord
	sess    *session
	state   memberState
	request *mcrdmav1.PrepareRequest  // nil: it is known from the state only
	answer  *mcrdmav1.PrepareResponse // once ready
	refused error                     // instead
	done    chan struct{}             // closed when there is either
	waiting int                       // calls of Prepare
	expires time.Time
	resumed bool // false: after a restart, the application has not said that it has it
	over    bool
}

// A memberRecord is what the daemon knows of a formed membership after a restart.
type memberRecord struct {
	ID        groupID
	Formation uint32
	Attach    uint64
	Service   string
	Sender    string // host
	Program   string // of the sender
	Path      mcrdmav1.Path
	Memory    uint64
	Joins     bool `json:",omitempty"` // there was no formation before
	Lease     time.Duration
	Since     time.Time
	User      userRecord
}

// find returns the membership in a formation; nil: there is none.
func (m *Manager) find(id groupID, formation uint32) *member {
	for _, x := range m.memberships[id] {
		if x.Formation == formation {
			return x
		}
	}
	return nil
}

// latest returns the highest number of a formation of the group here. It is called with
// Manager.mu.
func (m *Manager) latest(id groupID) (n uint32) {
	for _, x := range m.memberships[id] {
		n = max(n, x.Formation)
	}
	return n
}

// An invitation is a checked request to take part.
type invitation struct {
	id       groupID
	sender   string
	memory   uint64
	lease    time.Duration
	deadline time.Time
	*mcrdmav1.PrepareRequest
}

// maxFormations is how many formations of a group may exist at a time: the one that is
// formed, the one that is being made, and some whose end has not arrived yet.
const maxFormations = 4

// prepare has the application that listens answer whether it takes part.
func (m *Manager) prepare(ctx context.Context, in invitation) (*mcrdmav1.PrepareResponse, error) {
	m.mu.Lock()
	x, err := m.invite(in)
	if err == nil {
		x.waiting++
	}
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-x.done:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	x.waiting--
	switch {
	case x.answer != nil && !x.over:
		return x.answer, nil
	case x.refused != nil:
		return nil, x.refused
	case x.waiting == 0:
		m.endMember(x, mcrdmav1.Detached_REASON_ABORTED, "the sender did not wait for an answer any longer")
	}
	if context.Cause(ctx) == context.Canceled { //nolint:errorlint // the very value
		return nil, context.Canceled
	}
	return nil, refuse(Timeout, "the application that listens for %q did not answer in time", in.GetService())
}

// invite finds the membership, or makes it and asks the application. It is called
// with Manager.mu.
func (m *Manager) invite(in invitation) (*member, error) {
	if x := m.find(in.id, in.GetFormation()); x != nil && sameInvitation(x.request, in.PrepareRequest) {
		return x, nil
	}
	if m.draining {
		return nil, refuse(NoService, drainText)
	}
	var previous *member
	for _, x := range m.memberships[in.id] {
		if x.Formation >= in.GetFormation() {
			f := refuse(Stale, "formation %d of the group is there already, and %d is asked for with another content", x.Formation, in.GetFormation())
			f.formation = m.latest(in.id)
			return nil, f
		}
		if x.state == formed {
			previous = x
		}
		if x.Memory != in.memory {
			return nil, refuse(Invalid, "the regions of a group stay as they are: %d bytes, and not %d", x.Memory, in.memory)
		}
	}
	if previous != nil && in.GetJoins() {
		m.endMember(previous, mcrdmav1.Detached_REASON_REMOVED, "the sender has begun anew with this host")
		return nil, refuse(Stale, "this host's membership of before has only now ended: try again")
	}
	s, attach := m.services[in.GetService()], uint64(0)
	if previous != nil {
		s, attach = previous.sess, previous.Attach
	}
	if s == nil {
		return nil, refuse(NoService, "no application listens for the service %q: start it, or correct the name", in.GetService())
	}
	switch n := len(m.memberships[in.id]); {
	case n >= maxFormations:
		return nil, refuse(Limit, "%d formations of the group are there, and none of them is given up: drop those that are not to be", n)
	case n == 0:
		if err := m.roomForSender(in.id.source); err != nil {
			return nil, err
		}
		if err := m.takeMembership(s.user.uid, in.memory); err != nil {
			return nil, err
		}
	}
	now := m.clock.now()
	x := &member{memberRecord: memberRecord{ID: in.id, Formation: in.GetFormation(), Attach: m.attach.Add(1), Service: in.GetService(),
		Sender: in.sender, Program: clip(in.GetProgram(), maxName), Memory: in.memory, Joins: in.GetJoins(), Lease: in.lease, Since: now, User: s.record()},
		sess: s, request: in.PrepareRequest, done: make(chan struct{}), expires: now.Add(in.lease), resumed: true}
	m.memberships[in.id] = append(m.memberships[in.id], x)
	s.members[x.Attach] = x
	m.push(s, &mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_AttachRequested{AttachRequested: in.event(x.Attach, attach)}})
	return x, nil
}

// answer takes an application's answer.
func (m *Manager) answer(s *session, req *mcrdmav1.AnswerAttachRequest) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := s.members[req.GetAttach()]
	if x == nil {
		return refuse(NotFound, "attachment %d is no longer asked for", req.GetAttach())
	}
	if x.state != asked {
		return refuse(Stale, "attachment %d has been answered", req.GetAttach())
	}
	if req.GetRefused() != "" {
		x.refused = refusalOf(req)
		close(x.done)
		m.dropMember(x)
		return nil
	}
	if err := checkAnswer(x.request, req); err != nil {
		return err
	}
	x.state = ready
	x.answer = &mcrdmav1.PrepareResponse{Host: m.name, Qpn: req.GetQpn(), Mtu: x.request.GetConnection().GetMtu(), Regions: req.GetRegions(),
		Bootstrap: req.GetBootstrap(), Transport: req.GetTransport(), Have: req.GetHave(), Version: ProtocolVersion, Rack: m.cfg.Rack}
	close(x.done)
	return nil
}

// commit makes a membership a formed one. The earlier formations end.
func (m *Manager) commit(ctx context.Context, id groupID, f *mcrdmav1.FormationInfo) error {
	m.mu.Lock()
	x := m.find(id, f.GetFormation())
	if x == nil || x.state == asked {
		m.mu.Unlock()
		return refuse(NotFound, "formation %d of the group has not been prepared, or was given up", f.GetFormation())
	}
	if x.state == formed {
		m.tellFormed(x, f) // this daemon may have been restarted before it told its application
		m.mu.Unlock()
		return nil
	}
	x.Path = f.GetPath()
	record := x.memberRecord
	m.mu.Unlock()
	if err := m.commitState(ctx, memberEdit(record.Attach, encode(record))); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if x.over {
		m.forget(memberEdit(x.Attach, nil))
		return refuse(NotFound, "formation %d of the group was given up", f.GetFormation())
	}
	if x.state == formed {
		return nil
	}
	x.state = formed
	x.expires = m.clock.now().Add(x.Lease)
	m.tellFormed(x, f)
	for _, o := range slices.Clone(m.memberships[id]) {
		if o.Formation < x.Formation {
			m.endMember(o, mcrdmav1.Detached_REASON_REFORMED, "")
		}
	}
	return nil
}

// tellFormed is called with Manager.mu.
func (m *Manager) tellFormed(x *member, f *mcrdmav1.FormationInfo) {
	m.push(x.sess, &mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_AttachFormed{
		AttachFormed: &mcrdmav1.AttachFormed{Attach: x.Attach, Formation: f}}})
}

// endMember ends a membership and tells its application, unless the application ended it.
// It is called with Manager.mu.
func (m *Manager) endMember(x *member, reason mcrdmav1.Detached_Reason, text string) {
	if x.over {
		return
	}
	if x.state == asked {
		x.refused = refuse(Closed, "%s", text)
		close(x.done)
	}
	m.dropMember(x)
	if m.unask(x) {
		return
	}
	if reason == mcrdmav1.Detached_REASON_UNSPECIFIED {
		m.gone.add(endedKey{x.ID, x.Formation}, text, m.clock.now())
		return
	}
	x.sess.noteEnd(end{attach: x.Attach, why: detachedFault(reason, text)})
	m.push(x.sess, &mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_Detached{
		Detached: &mcrdmav1.Detached{Attach: x.Attach, Reason: reason, Text: text}}})
}

// detachedFault is the error for an application that asks for a membership which has ended
// for that reason; nil: it need not know.
func detachedFault(reason mcrdmav1.Detached_Reason, text string) *fault {
	switch reason {
	case mcrdmav1.Detached_REASON_CLOSED:
		return refuse(Closed, "the sender has closed the group")
	case mcrdmav1.Detached_REASON_REMOVED:
		return refuse(Removed, "%s", text)
	case mcrdmav1.Detached_REASON_SENDER_LOST:
		return refuse(SenderLost, "%s", text)
	}
	return nil
}

// unask removes a question that an application has not fetched from its queue, so that a
// sender that asks and gives up repeatedly does not fill it. It is called with Manager.mu.
func (m *Manager) unask(x *member) bool {
	if x.state != asked {
		return false
	}
	n := len(x.sess.queue)
	x.sess.queue = slices.DeleteFunc(x.sess.queue, func(e *mcrdmav1.OpenResponse) bool {
		return e.GetAttachRequested().GetAttach() == x.Attach
	})
	return len(x.sess.queue) < n
}

// dropMember removes a membership from all tables. It is called with Manager.mu.
func (m *Manager) dropMember(x *member) {
	x.over = true
	delete(x.sess.members, x.Attach)
	list := slices.DeleteFunc(m.memberships[x.ID], func(o *member) bool { return o == x })
	if len(list) == 0 {
		delete(m.memberships, x.ID)
		m.giveMembership(x.User.UID, x.Memory)
	} else {
		m.memberships[x.ID] = list
	}
	if x.state == formed {
		m.forget(memberEdit(x.Attach, nil))
	}
}

// leave ends a membership as its application asks.
func (m *Manager) leave(s *session, attach uint64, reason string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := s.members[attach]
	if x == nil {
		return refuse(NotFound, "there is no attachment %d", attach)
	}
	text := "the application has left"
	if reason != "" {
		text += ": " + clip(reason, maxText)
	}
	m.endMember(x, mcrdmav1.Detached_REASON_UNSPECIFIED, text)
	return nil
}

// drop ends a formation of a group, or (0) all, as the sender asks. A formation that was
// given up but is committed here, and so has ended the one before, stays until the next one
// replaces it.
func (m *Manager) drop(id groupID, formation uint32, reason mcrdmav1.Detached_Reason, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range slices.Clone(m.memberships[id]) {
		if formation == 0 || x.Formation == formation && (x.state != formed || x.Joins || reason != mcrdmav1.Detached_REASON_ABORTED) {
			m.endMember(x, reason, text)
		}
	}
}

// An endedKey names a membership that has ended.
type endedKey struct {
	id        groupID
	formation uint32
}

// An endedCache remembers for a while why memberships have ended.
type endedCache struct {
	texts map[endedKey]string
	order []endedEntry
}

type endedEntry struct {
	endedKey
	at time.Time
}

const (
	maxEnded  = 4096
	endedTime = 5 * time.Minute
)

func (g *endedCache) add(x endedKey, text string, now time.Time) {
	if g.texts == nil {
		g.texts = map[endedKey]string{}
	}
	for len(g.order) > 0 && (len(g.order) >= maxEnded || now.Sub(g.order[0].at) > endedTime) {
		delete(g.texts, g.order[0].endedKey)
		g.order = g.order[1:]
	}
	g.texts[x] = text
	g.order = append(g.order, endedEntry{x, now})
}
