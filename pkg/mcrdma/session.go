package mcrdma

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// connected begins a connection. c.mu is held, or nothing else knows the Client.
func (c *Client) connected() *connection {
	c.connection = &connection{up: make(chan struct{})}
	c.connection.ctx, c.connection.lost = context.WithCancel(c.ctx)
	return c.connection
}

// A stream is the daemon's events, on one connection.
type stream struct {
	grpc.ServerStreamingClient[mcrdmav1.OpenResponse]
	hello *mcrdmav1.Hello
	end   context.CancelFunc
}

// open begins or resumes the session. The stream lives as long as the Client; ctx is
// for the beginning only.
func (c *Client) open(ctx context.Context, token string) (*stream, error) {
	life, cancel := context.WithCancel(c.ctx)
	stop := context.AfterFunc(ctx, cancel)
	fail := func(err error) (*stream, error) {
		stop()
		cancel()
		return nil, cmp.Or(ctx.Err(), err)
	}
	events, err := c.rpc.Open(life, &mcrdmav1.OpenRequest{Program: c.opt.Program, Version: protocolVersion, Token: token, Views: true})
	if err != nil {
		return fail(fromStatus(err))
	}
	first, err := events.Recv()
	if err != nil {
		return fail(fromStatus(err))
	}
	hello := first.GetHello()
	switch {
	case hello == nil:
		return fail(fmt.Errorf("%w: it didn't say hello", ErrDaemon))
	case hello.GetVersion() != protocolVersion:
		return fail(fmt.Errorf("%w: the daemon speaks version %d of the protocol, this program version %d: use the same release of both",
			ErrVersion, hello.GetVersion(), protocolVersion))
	case !stop():
		return fail(ctx.Err())
	}
	return &stream{events, hello, cancel}, nil
}

// listenTo reads the daemon's events, for as long as the Client lives. When the daemon is
// gone, listenTo waits for it to come back.
func (c *Client) listenTo(s *stream) {
	for {
		event, err := s.Recv()
		for ; err == nil; event, err = s.Recv() {
			c.dispatch(event)
		}
		s.end()
		if c.ctx.Err() != nil {
			return
		}
		c.opt.Logger.Warn("the connection to the daemon is lost; data goes on without it", "error", fromStatus(err))
		c.mu.Lock()
		c.connection.lost()
		conn := c.connected()
		c.mu.Unlock()
		if s = c.reopen(); s == nil {
			return
		}
		c.wg.Go(func() { c.resume(conn) })
	}
}

// reopen returns nil if the Client was closed meanwhile.
func (c *Client) reopen() *stream {
	patience := c.patience()
	late := time.After(patience)
	for {
		s, err := c.open(c.ctx, c.token())
		if err == nil {
			c.mu.Lock()
			c.tok, c.grace = s.hello.GetToken(), s.hello.GetGrace().AsDuration()
			c.mu.Unlock()
			c.opt.Logger.Info("the daemon is back", "resumed", s.hello.GetResumed())
			return s
		}
		select {
		case <-c.ctx.Done():
			return nil
		case <-late:
			c.endMemberships(away(patience))
		case <-time.After(reopenEvery):
		}
	}
}

// endMemberships ends all memberships, because no daemon would report their end: the senders'
// daemons remove receivers whose daemon is away for so long. The host's daemon is told when it is
// back.
func (c *Client) endMemberships(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members {
		c.wg.Go(func() { m.end(err) })
	}
}

func (c *Client) dispatch(event *mcrdmav1.OpenResponse) {
	switch e := event.GetEvent().(type) {
	case *mcrdmav1.OpenResponse_GroupChanged:
		c.groupChanged(e.GroupChanged)
	case *mcrdmav1.OpenResponse_AttachRequested:
		c.attachRequested(e.AttachRequested)
	case *mcrdmav1.OpenResponse_AttachFormed:
		c.attached(e.AttachFormed.GetAttach(), func(l *memberLife, a *attach) { l.formed(a, e.AttachFormed.GetFormation()) })
	case *mcrdmav1.OpenResponse_CountersRequested:
		c.wg.Go(func() { c.answerCounters(e.CountersRequested.GetCall()) })
	case *mcrdmav1.OpenResponse_Detached:
		c.attached(e.Detached.GetAttach(), func(l *memberLife, a *attach) { l.detached(a, e.Detached.GetReason(), e.Detached.GetText()) })
	}
}

// answerCounters sends the device's counters to the daemon, for tools. It is not repeated.
func (c *Client) answerCounters(call uint64) {
	d := &mcrdmav1.DeviceCounters{Address: c.Address()}
	if c.dev != nil {
		a, counters := c.dev.Attr(), c.dev.Counters()
		d.Driver, d.Mtu = a.Driver, uint32(a.ActiveMTU) //nolint:gosec // 256 to 4096
		for _, name := range slices.Sorted(maps.Keys(counters)) {
			d.Counters = append(d.Counters, &mcrdmav1.DeviceCounter{Name: name, Value: counters[name]})
		}
	}
	_, _ = c.rpc.AnswerCounters(c.ctx, &mcrdmav1.AnswerCountersRequest{Token: c.token(), Call: call, Device: d})
}

// groupChanged passes an event to its group, or keeps it for a group that is being created. A group
// that this Client does not know is closed: its creation was given up.
func (c *Client) groupChanged(e *mcrdmav1.GroupChanged) {
	id := groupID(e.GetGroup())
	c.mu.Lock()
	g := c.groups[id]
	if g == nil && c.creating > 0 {
		c.orphans[id] = append(c.orphans[id], e)
	}
	unknown := g == nil && c.creating == 0
	c.mu.Unlock()
	switch {
	case g != nil:
		g.step(func(l *life) { l.changed(e) })
	case unknown:
		c.wg.Go(func() { c.closeGroup(id, ErrClosed) })
	}
}

// resume tells the daemon which groups and members still exist.
func (c *Client) resume(conn *connection) {
	c.mu.Lock()
	groups := slices.Collect(maps.Values(c.groups))
	listeners := slices.Collect(maps.Values(c.listeners))
	members := slices.Collect(maps.Values(c.members))
	c.mu.Unlock()
	for _, offer := range listeners {
		_, err := c.rpc.Listen(conn.ctx, &mcrdmav1.ListenRequest{Token: c.token(), Service: offer.cfg.Service})
		if lost(err) {
			return
		}
		if err != nil {
			c.opt.Logger.Error("the service cannot be offered any more", "service", offer.cfg.Service, "error", fromStatus(err))
		}
	}
	for _, m := range members {
		if !m.resume(conn.ctx) {
			return
		}
	}
	for _, g := range groups {
		if lost(g.resume(conn.ctx)) {
			return
		}
	}
	close(conn.up)
}
