package mcrdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// An attach is a membership in one formation.
type attach struct {
	m   *Member
	req *mcrdmav1.AttachRequested

	// Its resources, from prepare until its end, or until its path has taken them over:
	queuePair
	listener net.Listener
}

// refusal is an error whose reason goes to the sender's daemon.
type refusal struct {
	reason string
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }

func refuse(reason, format string, args ...any) error {
	return &refusal{reason, fmt.Errorf(format, args...)}
}

// attachRequested begins to answer.
func (c *Client) attachRequested(req *mcrdmav1.AttachRequested) {
	id := groupID(req.GetGroup())
	c.mu.Lock()
	m, l := c.members[id], c.listeners[req.GetService()]
	a := &attach{m: m, req: req}
	// A former member can't go on as one: it lacks what came before.
	first := req.GetFormation() == 1 || req.GetJoins()
	if m == nil && l != nil && first && !c.closed {
		m = &Member{c: c, id: id, listener: l, events: newEventQueue(), ended: make(chan struct{}), inbox: newInbox[Received]()}
		a.m = m
		c.members[id] = m
	}
	if m != nil {
		c.attaches[req.GetAttach()] = a
	}
	c.mu.Unlock()
	if m == nil {
		c.wg.Go(func() {
			err := refuse("NO_SERVICE", "no application of host %s listens for %q", c.Host(), req.GetService())
			if !first {
				err = c.errLeft()
			}
			_ = a.answer(c, err)
		})
		return
	}
	if !m.do(func() { m.attach(a) }) {
		c.wg.Go(func() { _ = a.answer(c, c.errLeft()) })
	}
}

// errLeft is the refusal for a member that has ended, or is about to.
func (c *Client) errLeft() error {
	return refuse("CLOSED", "the application of host %s has left the group", c.Host())
}

// answer tells the daemon, and through it the sender's, whether the application wants
// to be a receiver.
func (a *attach) answer(c *Client, err error) error {
	ans := &mcrdmav1.AnswerAttachRequest{Token: c.token(), Attach: a.req.GetAttach()}
	if err != nil {
		ans.Refused = err.Error()
		if r, ok := errors.AsType[*refusal](err); ok {
			ans.Reason = r.reason
		}
	} else {
		a.fill(ans)
	}
	ctx, cancel := context.WithTimeout(c.ctx, goodbye)
	defer cancel()
	_, e := c.rpc.AnswerAttach(ctx, ans)
	return errors.Join(err, fromStatus(e))
}

func (a *attach) fill(ans *mcrdmav1.AnswerAttachRequest) {
	m := a.m
	m.mu.Lock()
	defer m.mu.Unlock()
	ans.Have = m.have
	ans.Transport = transportTCP
	if m.c.dev != nil {
		ans.Transport = transportRDMA
	}
	if a.qp != nil {
		ans.Qpn = uint32(a.qp.QPN())
	}
	if a.listener != nil {
		ans.Bootstrap = a.listener.Addr().String()
	}
	for _, g := range m.regions {
		r := &mcrdmav1.ReceiverRegion{}
		if g.mr != nil {
			r.Rkey, r.Va = g.mr.RKey(), g.mr.Addr()
		}
		ans.Regions = append(ans.Regions, r)
	}
}

// attach prepares a formation. It ends an earlier one first, so that it is known what the
// member has.
func (m *Member) attach(a *attach) {
	m.drop()
	var err error
	m.mu.Lock()
	if m.ending {
		err = m.c.errLeft()
	}
	m.mu.Unlock()
	if err == nil {
		err = m.grant(a.req)
	}
	if err == nil {
		err = a.prepare()
	}
	if err == nil {
		m.mu.Lock()
		m.current = a
		m.mu.Unlock()
	}
	if err := a.answer(m.c, err); err != nil {
		m.c.opt.Logger.Info("not attached", "group", m.id, "error", err)
		m.c.takeAttach(a.req.GetAttach())
		m.drop()
		m.unlessFormed(err)
	}
}

// unlessFormed ends a member that has never been formed, or is no longer formed.
func (m *Member) unlessFormed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !m.formed:
		m.endLocked(fmt.Errorf("%w: %w", ErrFailed, err), false)
	case m.pendingEnd != nil:
		m.endLocked(m.pendingEnd, false)
	}
}

// drop ends the present formation.
func (m *Member) drop() {
	m.mu.Lock()
	a, path := m.current, m.path
	m.current, m.path = nil, nil
	m.mu.Unlock()
	if path != nil {
		path.stop()
	}
	if a != nil {
		a.close()
	}
}

// close ends what the attach still has.
func (a *attach) close() {
	a.queuePair.close()
	if a.listener != nil {
		_ = a.listener.Close()
	}
}

// grant asks the application, the first time.
func (m *Member) grant(req *mcrdmav1.AttachRequested) error {
	m.mu.Lock()
	asked := m.regions != nil || m.formed
	m.mu.Unlock()
	if asked {
		return nil
	}
	r := &Request{Service: req.GetService(), Sender: req.GetSender(), Program: req.GetSenderProgram(), Group: m.id}
	for _, s := range req.GetRegions() {
		r.Regions = append(r.Regions, Region{s.GetName(), s.GetLength()})
	}
	g, err := m.listener.cfg.Accept(r)
	if err != nil {
		return refuse("DENIED", "%w", err)
	}
	if g == nil {
		g = &Grant{}
	}
	err = m.take(r, g)
	switch {
	case errors.Is(err, qp.ErrClosed): // the application has ended meanwhile
		return m.c.errLeft()
	case err != nil:
		return refuse("INVALID", "the receiver's grant for %q: %w", r.Service, err)
	}
	return nil
}

// take makes the regions, so that the sender can write the granted bytes and no others.
func (m *Member) take(r *Request, g *Grant) error {
	if len(g.Regions) != len(r.Regions) {
		return fmt.Errorf("%w: %d regions, %d were asked for", ErrInvalid, len(g.Regions), len(r.Regions))
	}
	regions := []granted{}
	for i, p := range g.Regions {
		asked := r.Regions[i].Length
		if uint64(p.Len()) < asked || p.Len() == 0 {
			return errors.Join(fmt.Errorf("%w: region %d, %q, has %d bytes, %d were asked for", ErrRange, i, r.Regions[i].Name, p.Len(), asked),
				closeRegions(regions))
		}
		p = p.Slice(0, int(asked))
		if err := p.hold(m.c); err != nil {
			return errors.Join(err, closeRegions(regions))
		}
		reg := granted{piece: p}
		if m.c.pd != nil {
			var err error
			if reg.mr, err = m.c.pd.RegMR(p.Bytes(), qp.AccessLocalWrite|qp.AccessRemoteWrite); err != nil {
				p.release()
				return errors.Join(err, closeRegions(regions))
			}
		}
		regions = append(regions, reg)
	}
	m.mu.Lock()
	m.regions = regions
	m.mu.Unlock()
	for _, p := range g.Receives {
		if err := m.PostRecv(p); err != nil {
			return err
		}
	}
	return nil
}

// closeRegions deregisters the regions, so that the sender can no longer write to them.
func closeRegions(regions []granted) (err error) {
	for _, g := range regions {
		if g.mr != nil {
			err = errors.Join(err, ignoreClosed(g.mr.Close()))
		}
		g.piece.release()
	}
	return err
}

// prepare makes the queue pair, ready to receive, and the listener for relaying.
func (a *attach) prepare() error {
	c, conn := a.m.c, a.req.GetConnection()
	if conn != nil && c.dev != nil {
		if mtu := c.dev.Attr().ActiveMTU; uint32(mtu) < conn.GetMtu() {
			return refuse("MTU", "the device of host %s takes packets with up to %d bytes of payload, %s sends %d: give the group an MTU of %d, or the hosts' networks the same",
				c.Host(), mtu, a.req.GetSender(), conn.GetMtu(), mtu)
		}
		if err := a.makeQP(conn); err != nil {
			a.close()
			return refuse("LIMIT", "make a queue pair at host %s: %w", c.Host(), err)
		}
	}
	if a.req.GetRelay() {
		var err error
		if a.listener, err = c.bootstrap(); err != nil {
			a.close()
			return refuse("LIMIT", "host %s: %w", c.Host(), err)
		}
	}
	return nil
}

func (a *attach) makeQP(conn *mcrdmav1.Connection) (err error) {
	c := a.m.c
	attr := c.dev.Attr()
	a.queuePair, err = c.newQueuePair(min(MaxReceives+1, attr.MaxCQE),
		qp.Init{MaxSendWR: 1, MaxRecvWR: min(MaxReceives, attr.MaxQPWR), MaxSGE: 1}, qp.AccessRemoteWrite)
	if err != nil {
		return err
	}
	return ready(a.qp, conn)
}

// attachFormed begins a formation.
func (c *Client) attachFormed(e *mcrdmav1.AttachFormed) {
	c.mu.Lock()
	a := c.attaches[e.GetAttach()]
	c.mu.Unlock()
	if a != nil {
		_ = a.m.do(func() { a.m.begin(a, e.GetFormation()) })
	}
}

func (m *Member) begin(a *attach, info *mcrdmav1.FormationInfo) {
	m.mu.Lock()
	if m.current != a || m.path != nil || m.ending {
		m.mu.Unlock()
		return
	}
	first, before := !m.formed, m.info
	m.formed, m.info, m.last, m.pendingEnd = true, info, a, nil
	if first {
		m.have = info.GetHave()
	}
	drop := m.have - info.GetHave()
	var err error
	switch {
	case m.have < info.GetHave() || drop >= MaxDepth:
		err = fmt.Errorf("%w: this member has %d messages, the group goes on after %d", ErrFailed, m.have, info.GetHave())
	case Path(info.GetPath()) == PathSwitch:
		err = m.receiveBySwitch(a, int(drop))
	default:
		m.receiveByRelay(a, info)
	}
	if err != nil {
		m.endLocked(err, true)
	}
	m.mu.Unlock()
	switch {
	case err != nil:
	case !first:
		m.events.put(Event{Type: Reformed, Formation: info.GetFormation(), Before: Path(before.GetPath()), After: Path(info.GetPath())})
	case !m.listener.add(m):
		m.end(fmt.Errorf("%w: the listener", ErrClosed), true)
	}
}

// detached ends a formation, or the membership.
func (c *Client) detached(e *mcrdmav1.Detached) {
	a := c.takeAttach(e.GetAttach())
	if a == nil {
		return
	}
	if e.GetReason() == mcrdmav1.Detached_REASON_ABORTED && a.req.GetJoins() {
		c.forget(a.m)
	}
	_ = a.m.do(func() { a.m.detached(a, e) })
}

// forget makes room for another member of the same group, because this one has not joined
// it, unless this one has been asked again.
func (c *Client) forget(m *Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.attaches {
		if a.m == m {
			return
		}
	}
	if c.members[m.id] == m {
		delete(c.members, m.id)
	}
}

// takeAttach removes and returns an attach that the daemon sends no more events for.
func (c *Client) takeAttach(number uint64) *attach {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.attaches[number]
	delete(c.attaches, number)
	return a
}

func (m *Member) detached(a *attach, e *mcrdmav1.Detached) {
	m.mu.Lock()
	current := m.current == a
	m.mu.Unlock()
	var err error
	switch e.GetReason() {
	case mcrdmav1.Detached_REASON_ABORTED:
		m.abort(a, errors.New(e.GetText()))
		return
	case mcrdmav1.Detached_REASON_REFORMED:
		if current {
			m.drop()
		}
		return
	case mcrdmav1.Detached_REASON_CLOSED:
		err = fmt.Errorf("%w: the sender has closed the group", ErrClosed)
	case mcrdmav1.Detached_REASON_REMOVED:
		err = fmt.Errorf("%w: %s", ErrRemoved, e.GetText())
	case mcrdmav1.Detached_REASON_SENDER_LOST:
		err = fmt.Errorf("%w: %s", ErrSenderLost, e.GetText())
	default:
		err = fmt.Errorf("%w: %s", ErrFailed, e.GetText())
	}
	m.endWith(a, err)
}

// endWith ends the member with its formation, unless another one has replaced that. If
// another one is being made, its outcome decides.
func (m *Member) endWith(a *attach, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.current == nil || m.current == a:
		m.endLocked(err, false)
	case m.path == nil:
		m.pendingEnd = err
	}
}

// end ends the member, once, after what has come is delivered.
func (m *Member) end(err error, leave bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endLocked(err, leave)
}

// endLocked is end when m.mu is held.
func (m *Member) endLocked(err error, leave bool) {
	if !m.ending {
		m.ending = true
		m.doLocked(func() { m.finish(err, leave) })
	}
}

func (m *Member) finish(err error, leave bool) {
	m.mu.Lock()
	a := cmp.Or(m.current, m.last)
	m.mu.Unlock()
	if leave && a != nil {
		// Tell the daemons first, so that the sender does not wait for this member.
		text := err.Error()
		e := m.c.say(func(ctx context.Context) error {
			_, err := m.c.rpc.Leave(ctx, &mcrdmav1.LeaveRequest{Token: m.c.token(), Attach: a.req.GetAttach(), Reason: text})
			return err
		})
		if e != nil {
			m.c.opt.Logger.Debug("leave", "group", m.id, "error", e)
		}
	}
	m.drop()
	m.mu.Lock()
	for m.recvs.len() > 0 {
		p := m.recvs.pop()
		p.release()
	}
	regions, formation := m.regions, m.info.GetFormation()
	m.err = err
	m.mu.Unlock()
	if e := closeRegions(regions); e != nil {
		m.c.opt.Logger.Error("close regions", "group", m.id, "error", e)
	}
	m.c.mu.Lock()
	if m.c.members[m.id] == m {
		delete(m.c.members, m.id)
	}
	maps.DeleteFunc(m.c.attaches, func(_ uint64, a *attach) bool { return a.m == m })
	m.c.mu.Unlock()
	m.events.end(err, formation)
	close(m.ended)
}

// resume tells a daemon that has come back that the member is still there, in the formation
// that is being made, if any, and in the one before, which the daemon keeps until then. It
// returns false if the daemon is gone again.
func (m *Member) resume(ctx context.Context) bool {
	m.mu.Lock()
	current, last := m.current, m.last
	m.mu.Unlock()
	if current != nil && current != last {
		err := m.resumeAs(ctx, current)
		if lost(err) {
			return false
		}
		if err != nil {
			// It was not complete when the daemon ended. The sender's daemon asks again.
			m.do(func() { m.abort(current, fromStatus(err)) })
		}
	}
	if last == nil {
		return true
	}
	err := m.resumeAs(ctx, last)
	if lost(err) {
		return false
	}
	if err != nil {
		m.do(func() { m.notResumed(last, fromStatus(err)) })
		return true
	}
	m.events.put(Event{Type: Resumed, Formation: last.req.GetFormation()})
	return true
}

func (m *Member) resumeAs(ctx context.Context, a *attach) error {
	_, err := m.c.rpc.ResumeMember(ctx, &mcrdmav1.ResumeMemberRequest{
		Token: m.c.token(), Attach: a.req.GetAttach(), Group: m.id.wire(), Formation: a.req.GetFormation(),
	})
	return err
}

// abort ends a formation that was never complete, if it still is the present one. This
// member may have begun it: if that is how it joins the group, it ends.
func (m *Member) abort(a *attach, err error) {
	m.mu.Lock()
	present, begun := m.current == a, m.path != nil
	m.mu.Unlock()
	switch {
	case !present:
	case !begun:
		m.c.takeAttach(a.req.GetAttach())
		m.drop()
		m.unlessFormed(err)
	case a.req.GetJoins():
		m.endWith(a, fmt.Errorf("%w: %w", ErrFailed, err))
	}
}

// notResumed ends the member, because the daemon does not have it, unless another formation
// has replaced that one.
func (m *Member) notResumed(a *attach, err error) {
	m.mu.Lock()
	other := m.last != a
	m.mu.Unlock()
	if other {
		return
	}
	if errors.Is(err, ErrDaemon) {
		err = fmt.Errorf("the daemon could not be reached, and does not resume the member: %w", err)
	}
	m.endWith(a, err)
}
