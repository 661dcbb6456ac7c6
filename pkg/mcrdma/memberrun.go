package mcrdma

import (
	"context"
	"fmt"
	"maps"
	"slices"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma/internal/unicast"
)

// step gives the member's life an event.
func (m *Member) step(event func(*memberLife)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	event(&m.life)
	m.work()
}

// end ends the member for a reason of its own.
func (m *Member) end(err error) {
	m.step(func(l *memberLife) { l.stop(err, true) })
}

// endLocked is end when m.mu is held.
func (m *Member) endLocked(err error) {
	m.life.stop(err, true)
	m.work()
}

// work starts a goroutine for the actions of the member's life, if none is running. m.mu is held.
func (m *Member) work() {
	if m.working || len(m.life.out) == 0 {
		return
	}
	m.working = true
	m.c.wg.Go(func() {
		for a := m.next(); a != nil; a = m.next() {
			m.perform(a)
		}
	})
}

// next takes the next action; nil: there is none, and the goroutine ends.
func (m *Member) next() action {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.life.out) == 0 {
		m.working = false
		return nil
	}
	a := m.life.out[0]
	m.life.out = m.life.out[1:]
	return a
}

// perform does an action of the member's life.
func (m *Member) perform(action action) {
	switch a := action.(type) {
	case drop:
		m.drop(a.a)
	case offer:
		if err := m.offer(a.a); err != nil {
			m.c.opt.Logger.Info("not attached", "group", m.id, "error", err)
			m.step(func(l *memberLife) { l.offered(a.a, err) })
		}
	case refuse:
		_ = m.c.answer(a.a.req, nil, m.c.errLeft())
	case carry:
		if err := m.begin(a.a, a.info); err != nil {
			m.end(err)
		}
	case tell:
		m.events.put(a.event)
	case leave:
		err := m.c.say(func(ctx context.Context) error {
			_, err := m.c.rpc.Leave(ctx, &mcrdmav1.LeaveRequest{Token: m.c.token(), Attach: a.a.req.GetAttach(), Reason: clipText(a.why.Error())})
			return err
		})
		if err != nil {
			m.c.opt.Logger.Debug("leave", "group", m.id, "error", err)
		}
	case finish:
		m.finish(a.why)
	}
}

// attachRequested begins to answer a request to join. A former member cannot continue, because it
// lacks operations; but it can join again.
func (c *Client) attachRequested(req *mcrdmav1.AttachRequested) {
	id, first := groupID(req.GetGroup()), req.GetFormation() == 1 || req.GetJoins()
	c.mu.Lock()
	m := c.members[id]
	c.mu.Unlock()
	if first && (m == nil || m.ending()) {
		m = c.newMember(id, req.GetService())
	}
	switch {
	case m != nil:
		m.step(func(l *memberLife) { l.asked(&attach{req: req}) })
	case first:
		err := newError(mcrdmav1.Reason_NO_SERVICE, "no application of host %s listens for %q", c.Host(), req.GetService())
		c.wg.Go(func() { _ = c.answer(req, nil, err) })
	default:
		c.wg.Go(func() { _ = c.answer(req, nil, c.errLeft()) })
	}
}

// newMember returns nil if the application does not listen for the service.
func (c *Client) newMember(id GroupID, service string) *Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.listeners[service]
	if l == nil || c.isClosed() {
		return nil
	}
	m := &Member{c: c, id: id, listener: l, events: newEventQueue(), ended: make(chan struct{}), inbox: newInbox[Received](), sends: make(chan struct{}, unicast.Slots)}
	c.members[id] = m
	return m
}

// attached tells the member whose attach that is.
func (c *Client) attached(number uint64, event func(*memberLife, *attach)) {
	c.mu.Lock()
	members := slices.Collect(maps.Values(c.members))
	c.mu.Unlock()
	for _, m := range members {
		m.step(func(l *memberLife) {
			if a := l.find(number); a != nil {
				event(l, a)
			}
		})
	}
}

// resume tells a daemon that has come back that the member is still there, in the formation
// that is being made, if any, and in the one before, which the daemon keeps until then. It
// returns false if the daemon is gone again.
func (m *Member) resume(ctx context.Context) bool {
	m.mu.Lock()
	next, last := m.life.next, m.life.last
	m.mu.Unlock()
	for _, a := range []*attach{next, last} {
		if a == nil {
			continue
		}
		_, err := m.c.rpc.ResumeMember(ctx, &mcrdmav1.ResumeMemberRequest{
			Token: m.c.token(), Attach: a.req.GetAttach(), Group: m.id.wire(), Formation: a.req.GetFormation(),
		})
		if lost(err) {
			return false
		}
		m.step(func(l *memberLife) { l.resumed(a, fromStatus(err)) })
	}
	return true
}

// Close leaves the group, which goes on without this member. It is also a fence: after it has
// returned nil, no write of the sender changes the regions, whatever packets are still in the
// network, because the queue pair and the regions' keys are gone, and no host relays to this one.
// An error says that the device has not deregistered a region. Call Close for the fence even if the
// member has ended otherwise. It may be called again.
func (m *Member) Close() error {
	m.end(fmt.Errorf("%w: this member has left the group", ErrClosed))
	<-m.ended
	return m.unfenced
}
