package mcrdma

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	errinfo "github.com/mcrdma/mcrdma/internal/failure"
)

const (
	protocolVersion = 1
	reopenEvery     = 50 * time.Millisecond
	defaultGrace    = 10 * time.Second // for a daemon that does not report it
)

// A session is what a Client knows of its own.
type session struct {
	connection *connection
	tok        string
	grace      time.Duration // for which the daemon keeps it
}

// A connection is one of the session's connections to the daemon.
type connection struct {
	ctx  context.Context // until it is lost
	lost context.CancelFunc
	up   chan struct{} // closed when all has been resumed: calls can be made
}

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

// endMemberships ends all memberships, because no daemon would report their end: the
// senders' daemons take out receivers whose daemon is away for so long. The host's daemon
// is told when it is back.
func (c *Client) endMemberships(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members {
		c.wg.Go(func() { m.end(err) })
	}
}

// patience returns how long the daemon may be away: it keeps sessions for that time.
func (c *Client) patience() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.grace, defaultGrace)
}

func away(patience time.Duration) error {
	return fmt.Errorf("%w has been away for more than %v, for which it keeps sessions", ErrDaemon, patience)
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

// answerCounters tells the daemon, for tools, what the device has counted. That is not repeated.
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

// groupChanged hands an event to its group, or keeps it for a group that is being
// created. A group that this Client can't have is closed: its creation was given up.
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
		c.wg.Go(func() { c.closeGroup(id) })
	}
}

// closeGroup has the daemon close a group.
func (c *Client) closeGroup(id GroupID) {
	err := c.say(func(ctx context.Context) error {
		_, err := c.rpc.CloseGroup(ctx, &mcrdmav1.CloseGroupRequest{Token: c.token(), Group: id.wire()})
		return err
	})
	if err != nil {
		c.opt.Logger.Warn("close a group", "group", id, "error", err)
	}
}

// say tells the daemon that something has ended, by a call that may be made twice. If the
// daemon can't be reached now, it is told when it is back: otherwise it would wait for what
// never comes back, and report it to the others as lost.
func (c *Client) say(f func(context.Context) error) error {
	said := make(chan error, 1)
	c.wg.Go(func() { said <- c.repeat(c.ctx, c.ready, f) })
	select {
	case err := <-said:
		return err
	case <-time.After(goodbye):
		return fmt.Errorf("%w has not answered within %v", ErrDaemon, goodbye)
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

func (c *Client) token() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tok
}

// lost reports whether a call failed because the daemon is gone, or the call's context
// ended; it is false for errors that daemons return themselves.
func lost(err error) bool {
	if err == nil {
		return false
	}
	if errinfo.Info(err) != nil {
		return false
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return true
	}
	return false
}

// ready waits until calls can be made.
func (c *Client) ready(ctx context.Context) (*connection, error) {
	for {
		c.mu.Lock()
		conn := c.connection
		c.mu.Unlock()
		select {
		case <-conn.up:
			return conn, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("%w is not there: %w", ErrDaemon, ctx.Err())
		case <-conn.ctx.Done():
			if c.ctx.Err() != nil {
				return nil, errClientClosed
			}
		}
	}
}

// readySoon waits for the daemon as long as it would keep the session. A caller that needs
// the daemon has to give up then: the other hosts do not wait any longer either.
func (c *Client) readySoon(ctx context.Context) (*connection, error) {
	patience := c.patience()
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := c.ready(soon)
	if err != nil && soon.Err() != nil && ctx.Err() == nil {
		return nil, away(patience)
	}
	return conn, err
}

// call makes a call that may be made twice: if the daemon goes away meanwhile, it is
// repeated when the daemon is back, if that is soon.
func call[Req, Resp any](ctx context.Context, c *Client, f func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (resp Resp, err error) {
	err = c.repeat(ctx, c.readySoon, func(ctx context.Context) (err error) {
		resp, err = f(ctx, req)
		return err
	})
	return resp, err
}

// repeat makes a call until it is not lost.
func (c *Client) repeat(ctx context.Context, ready func(context.Context) (*connection, error), f func(context.Context) error) error {
	for {
		conn, err := ready(ctx)
		if err != nil {
			return err
		}
		if err = f(ctx); !lost(err) || ctx.Err() != nil {
			return fromStatus(err)
		}
		select {
		case <-conn.ctx.Done():
		case <-time.After(reopenEvery): // only this call failed
		case <-ctx.Done():
			return fromStatus(err)
		}
	}
}

func groupID(id *mcrdmav1.GroupID) GroupID { return GroupID{id.GetSource(), id.GetNumber()} }

func (id GroupID) wire() *mcrdmav1.GroupID {
	return &mcrdmav1.GroupID{Source: id.Source, Number: id.Number}
}
