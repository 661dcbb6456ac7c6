package mcrdma

import (
	"context"
	"errors"
	"fmt"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// errLeft is the refusal for a member that has ended, or is about to. Another one may take its place.
func (c *Client) errLeft() error {
	return newError(mcrdmav1.Reason_NO_SERVICE, "the application of host %s has left the group", c.Host())
}

// answer tells the daemon, and through it the sender's daemon, whether the application joins: yes,
// or an error why not.
func (c *Client) answer(req *mcrdmav1.AttachRequested, yes *mcrdmav1.AnswerAttachRequest, err error) error {
	if err != nil {
		yes = &mcrdmav1.AnswerAttachRequest{Refused: clipText(err.Error())}
		if e, ok := errors.AsType[*Error](err); ok {
			yes.Refused, yes.Reason = clipText(e.Text), e.Reason.String()
		}
	}
	yes.Token, yes.Attach = c.token(), req.GetAttach()
	ctx, cancel := context.WithTimeout(c.ctx, goodbye)
	defer cancel()
	_, e := c.rpc.AnswerAttach(ctx, yes)
	return errors.Join(err, fromStatus(e))
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
	g, err := m.ask(r)
	switch {
	case m.c.isClosed():
		return m.c.errLeft()
	case err != nil:
		return newError(mcrdmav1.Reason_DENIED, "%v", err)
	}
	if g == nil {
		g = &Grant{}
	}
	err = m.take(r, g, req.GetRegions())
	switch {
	case errors.Is(err, qp.ErrClosed): // the application has ended meanwhile
		return m.c.errLeft()
	case err != nil:
		return newError(mcrdmav1.Reason_INVALID, "the receiver's grant for %q: %v", r.Service, err)
	}
	return nil
}

// ask calls the application's hook. If the hook hangs, the client ends without it.
func (m *Member) ask(r *Request) (*Grant, error) {
	var g *Grant
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		g, err = m.listener.cfg.Accept(r)
	}()
	select {
	case <-done:
		return g, err
	case <-m.c.closed:
		return nil, errClientClosed
	}
}

// take makes the regions, so that the sender can write only the granted bytes.
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

// register makes a region that the sender may write and read. If the device can, the region has the
// address that the sender's packets carry, so that switches need not change it.
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
			return newError(mcrdmav1.Reason_MTU, "the device of host %s takes packets with up to %d bytes of payload, %s sends %d: give the group an MTU of %d, or the hosts' networks the same",
				c.Host(), mtu, a.req.GetSender(), conn.GetMtu(), mtu)
		}
		a.queuePair, err = c.newQueuePair(min(MaxReceives+1, attr.MaxCQE),
			qp.Init{MaxSendWR: 1, MaxRecvWR: min(MaxReceives, attr.MaxQPWR), MaxSGE: 1}, qp.AccessRemoteWrite)
		if err == nil {
			err = ready(a.qp, conn)
		}
		if err != nil {
			return newError(mcrdmav1.Reason_LIMIT, "make a queue pair at host %s: %v", c.Host(), err)
		}
	}
	switch {
	case a.req.GetRelay():
		return a.listen(c)
	case a.qp == nil:
		return newError(mcrdmav1.Reason_NO_SWITCH, "mode require, and the receiver's application has no RDMA device: %s", c.noDeviceText())
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

// add hands a member to Accept; false if the listener is closed.
func (l *Listener) add(m *Member) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.ready.put(m)
	}
	return !l.closed
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

// receiveBySwitch makes the path of a formation in which switches copy. The first again messages
// are dropped, because the member has them. m.mu is held.
func (m *Member) receiveBySwitch(a *attach, again int) (inbound, error) {
	if a.qp == nil {
		return nil, fmt.Errorf("%w: it put this member behind switches, without a queue pair", ErrDaemon)
	}
	if a.listener != nil {
		_ = a.listener.Close()
		a.listener = nil
	}
	p := &inSwitch{m: m, queuePair: a.queuePair, again: again, fillup: again, room: min(MaxReceives, m.c.dev.Attr().MaxQPWR)}
	if again > 0 {
		// Messages that arrive again need receives of their size, and must not use those that the
		// application posted for other messages.
		size := uint32(1)
		for i := range again {
			size = max(size, m.sizes[(m.have-uint64(i))%MaxDepth])
		}
		var err error
		if p.spare, err = m.c.pd.RegMR(make([]byte, size), qp.AccessLocalWrite); err != nil {
			return nil, closedOr(err)
		}
	}
	m.writer = a.qp
	return p, nil
}

// receiveByRelay makes the path of a formation in which hosts relay. m.mu is held.
func (m *Member) receiveByRelay(a *attach, info *mcrdmav1.FormationInfo) inbound {
	p := &inRelay{m: m, info: info, listener: a.listener, news: make(chan struct{}, 1)}
	p.asm = assembler{message: info.GetHave(), have: m.have}
	for _, g := range m.regions {
		p.asm.regions = append(p.asm.regions, g.piece.Bytes())
	}
	a.listener = nil
	a.close()
	return p
}

// drop closes the resources of an attach.
func (m *Member) drop(a *attach) {
	m.mu.Lock()
	stop := a.stop
	a.path, a.stop = nil, nil
	m.mu.Unlock()
	if stop != nil {
		stop()
	}
	q := a.qp
	a.close()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writer == q {
		m.writer = nil
	}
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
	forget(m.c, m.c.members, m.id, m)
	m.events.put(lastEvent(why, formation))
	close(m.ended)
}
