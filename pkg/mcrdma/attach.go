package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma/internal/unicast"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// errLeft is the refusal for a member that has ended, or is about to.
func (c *Client) errLeft() error {
	return because(mcrdmav1.Reason_CLOSED, "the application of host %s has left the group", c.Host())
}

// attachRequested begins to answer. A former member can't go on as one, since it lacks what
// came before; but it can begin anew.
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
		err := because(mcrdmav1.Reason_NO_SERVICE, "no application of host %s listens for %q", c.Host(), req.GetService())
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
	if l == nil || c.closed {
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

// answer tells the daemon, and through it the sender's, whether the application wants to be a
// receiver: yes, or an error why not.
func (c *Client) answer(req *mcrdmav1.AttachRequested, yes *mcrdmav1.AnswerAttachRequest, err error) error {
	if err != nil {
		yes = &mcrdmav1.AnswerAttachRequest{Refused: sayable(err.Error())}
		if e, ok := errors.AsType[*Error](err); ok {
			yes.Refused, yes.Reason = sayable(e.Text), e.Reason.String()
		}
	}
	yes.Token, yes.Attach = c.token(), req.GetAttach()
	ctx, cancel := context.WithTimeout(c.ctx, goodbye)
	defer cancel()
	_, e := c.rpc.AnswerAttach(ctx, yes)
	return errors.Join(err, fromStatus(e))
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
			_, err := m.c.rpc.Leave(ctx, &mcrdmav1.LeaveRequest{Token: m.c.token(), Attach: a.a.req.GetAttach(), Reason: sayable(a.why.Error())})
			return err
		})
		if err != nil {
			m.c.opt.Logger.Debug("leave", "group", m.id, "error", err)
		}
	case finish:
		m.finish(a.why)
	}
}

// offer asks the application, the first time, prepares a formation, and answers.
func (m *Member) offer(a *attach) error {
	m.mu.Lock()
	granted := m.regions != nil
	m.mu.Unlock()
	var err error
	if !granted {
		err = m.grant(a.req)
	}
	if err == nil {
		err = m.prepare(a)
	}
	return m.c.answer(a.req, m.answer(a), err)
}

func (m *Member) answer(a *attach) *mcrdmav1.AnswerAttachRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	ans := &mcrdmav1.AnswerAttachRequest{Have: m.have, Transport: transportTCP, Qpn: a.qpn(), Bootstrap: a.bootstrap(), Unicast: m.how, NoDevice: m.c.noDeviceText()}
	if m.c.dev != nil {
		ans.Transport, ans.SeesIdentification = transportRDMA, m.c.dev.Attr().SeesIdentification
	}
	for _, g := range m.regions {
		r := &mcrdmav1.ReceiverRegion{}
		if g.mr != nil {
			r.Rkey, r.Va = g.mr.RKey(), g.mr.Addr()
		}
		ans.Regions = append(ans.Regions, r)
	}
	return ans
}

// grant asks the application.
func (m *Member) grant(req *mcrdmav1.AttachRequested) error {
	r := &Request{Service: req.GetService(), Sender: req.GetSender(), Program: req.GetSenderProgram(), Group: m.id}
	for _, s := range req.GetRegions() {
		r.Regions = append(r.Regions, Region{s.GetName(), s.GetLength()})
	}
	g, err := m.listener.cfg.Accept(r)
	if err != nil {
		return because(mcrdmav1.Reason_DENIED, "%v", err)
	}
	if g == nil {
		g = &Grant{}
	}
	err = m.take(r, g, req.GetRegions())
	switch {
	case errors.Is(err, qp.ErrClosed): // the application has ended meanwhile
		return m.c.errLeft()
	case err != nil:
		return because(mcrdmav1.Reason_INVALID, "the receiver's grant for %q: %v", r.Service, err)
	}
	return nil
}

// take makes the regions, so that the sender can write the granted bytes and no others.
func (m *Member) take(r *Request, g *Grant, asked []*mcrdmav1.RegionSpec) (err error) {
	if len(g.Regions) != len(r.Regions) {
		return fmt.Errorf("%w: %d regions, %d were asked for", ErrInvalid, len(g.Regions), len(r.Regions))
	}
	regions := []granted{}
	for i, p := range g.Regions {
		if regions, err = m.add(regions, p, asked[i]); err != nil {
			return errors.Join(fmt.Errorf("region %d, %q: %w", i, r.Regions[i].Name, err), closeRegions(regions))
		}
	}
	m.mu.Lock()
	m.regions, m.replenish = regions, g.Replenish
	m.mu.Unlock()
	if err := m.offerUnicast(); err != nil {
		return err
	}
	for _, p := range g.Receives {
		if err := m.PostRecv(p); err != nil {
			return err
		}
	}
	return nil
}

func (m *Member) add(regions []granted, p Piece, asked *mcrdmav1.RegionSpec) ([]granted, error) {
	if uint64(p.Len()) < asked.GetLength() || p.Len() == 0 {
		return regions, fmt.Errorf("%w: it has %d bytes, %d were asked for", ErrInvalid, p.Len(), asked.GetLength())
	}
	p = p.Slice(0, int(asked.GetLength())) //nolint:gosec // at most the piece's
	if err := p.hold(m.c); err != nil {
		return regions, err
	}
	g := granted{piece: p}
	var err error
	if m.c.pd != nil {
		g.mr, err = m.c.register(p.Bytes(), asked.GetVa())
	}
	return append(regions, g), err
}

// register makes a region that the sender may write and read. If the device can, it has the
// address that the sender's packets carry, so that switches leave it alone.
func (c *Client) register(buf []byte, va uint64) (qp.MR, error) {
	const access = qp.AccessLocalWrite | qp.AccessRemoteWrite | qp.AccessRemoteRead
	if m, ok := c.pd.(qp.Mapper); ok && va != 0 {
		mr, err := m.RegMRAt(buf, va, access)
		if !errors.Is(err, qp.ErrAttr) {
			return mr, err
		}
	}
	return c.pd.RegMR(buf, access)
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
func (m *Member) prepare(a *attach) (err error) {
	c, conn := m.c, a.req.GetConnection()
	if conn != nil && c.dev != nil {
		attr := c.dev.Attr()
		if mtu := attr.ActiveMTU; uint32(mtu) < conn.GetMtu() {
			return because(mcrdmav1.Reason_MTU, "the device of host %s takes packets with up to %d bytes of payload, %s sends %d: give the group an MTU of %d, or the hosts' networks the same",
				c.Host(), mtu, a.req.GetSender(), conn.GetMtu(), mtu)
		}
		a.queuePair, err = c.newQueuePair(min(MaxReceives+1, attr.MaxCQE),
			qp.Init{MaxSendWR: 1, MaxRecvWR: min(MaxReceives, attr.MaxQPWR), MaxSGE: 1}, qp.AccessRemoteWrite)
		if err == nil {
			err = ready(a.qp, conn)
		}
		if err != nil {
			return because(mcrdmav1.Reason_LIMIT, "make a queue pair at host %s: %v", c.Host(), err)
		}
	}
	if a.req.GetRelay() {
		if err := a.listen(c); err != nil {
			return because(mcrdmav1.Reason_LIMIT, "host %s: %v", c.Host(), err)
		}
	}
	return nil
}

// begin begins a formation.
func (m *Member) begin(a *attach, info *mcrdmav1.FormationInfo) error {
	before, err := m.carry(a, info)
	switch {
	case err != nil || m.ending():
	case before != nil:
		m.events.put(Event{Type: EventReformed, Formation: info.GetFormation(), Before: Path(before.GetPath()), After: Path(info.GetPath())})
	case !m.listener.add(m):
		err = fmt.Errorf("%w: the listener", ErrClosed)
	}
	return err
}

// carry makes the formation's path. It returns the formation before; nil: this is the first.
func (m *Member) carry(a *attach, info *mcrdmav1.FormationInfo) (before *mcrdmav1.FormationInfo, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, m.info = m.info, info
	if before == nil {
		m.have = info.GetHave()
	}
	again := m.have - info.GetHave()
	if m.have < info.GetHave() || again >= MaxDepth {
		return before, fmt.Errorf("%w: this member has %d messages, the group goes on after %d", ErrFailed, m.have, info.GetHave())
	}
	if Path(info.GetPath()) != PathSwitch {
		a.path = m.receiveByRelay(a, info)
	} else if a.path, err = m.receiveBySwitch(a, int(again)); err != nil {
		return before, err
	}
	ctx, end := context.WithCancel(m.c.ctx)
	done := make(chan struct{})
	a.stop = func() {
		end()
		<-done
	}
	path := a.path
	m.c.wg.Go(func() {
		defer close(done)
		path.run(ctx)
	})
	path.more()
	return before, nil
}

// drop ends what an attach has.
func (m *Member) drop(a *attach) {
	m.mu.Lock()
	stop := a.stop
	a.path, a.stop = nil, nil
	m.mu.Unlock()
	if stop != nil {
		stop()
	}
	a.close()
}

// finish ends the member.
func (m *Member) finish(why error) {
	m.mu.Lock()
	for m.recvs.len() > 0 {
		p := m.recvs.pop()
		p.release()
	}
	regions, formation := m.regions, m.info.GetFormation()
	m.err = m.id.about(why)
	m.mu.Unlock()
	m.endUnicast(m.err)
	if m.unfenced = closeRegions(regions); m.unfenced != nil {
		m.c.opt.Logger.Error("close regions", "group", m.id, "error", m.unfenced)
	}
	m.c.mu.Lock()
	if m.c.members[m.id] == m {
		delete(m.c.members, m.id)
	}
	m.c.mu.Unlock()
	m.events.put(lastEvent(why, formation))
	close(m.ended)
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
