package mcrdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// check says what is wrong with a configuration, as far as that needs no daemon, and fills
// in defaults.
func (cfg GroupConfig) check() (GroupConfig, error) {
	cfg.Depth, cfg.ViewTime = cmp.Or(cfg.Depth, DefaultDepth), cmp.Or(cfg.ViewTime, DefaultViewTime)
	cfg.Receivers, cfg.Regions = slices.Clone(cfg.Receivers), slices.Clone(cfg.Regions)
	bad := func(format string, args ...any) (GroupConfig, error) {
		return cfg, fmt.Errorf("%w group: %s", ErrInvalid, fmt.Sprintf(format, args...))
	}
	switch {
	case cfg.Service == "":
		return bad("it needs a Service")
	case len(cfg.Receivers) == 0:
		return bad("it needs Receivers")
	case int(cfg.Mode) >= len(modes):
		return bad("mode %d", cfg.Mode)
	case cfg.MinSize < 0 || cfg.MinSize > math.MaxInt32:
		return bad("MinSize %d", cfg.MinSize)
	case cfg.DSCP > 63:
		return bad("DSCP %d; at most 63", cfg.DSCP)
	case cfg.MTU != 0 && !qp.ValidMTU(cfg.MTU):
		return bad("MTU %d; it is 256, 512, 1024, 2048 or 4096", cfg.MTU)
	case cfg.Depth < 0 || cfg.Depth > MaxDepth:
		return bad("Depth %d; at most %d", cfg.Depth, MaxDepth)
	case cfg.ViewTime < 0 || cfg.ViewTime > MaxViewTime:
		return bad("ViewTime %v; at most %v", cfg.ViewTime, MaxViewTime)
	case cfg.TypicalSize < 0:
		return bad("TypicalSize %d", cfg.TypicalSize)
	case cfg.CNPGap < 0:
		return bad("CNPGap %v", cfg.CNPGap)
	case cfg.Wait < 0:
		return bad("Wait %v", cfg.Wait)
	case cfg.Transport != "" && cfg.Transport != transportRDMA && cfg.Transport != transportTCP:
		return bad("Transport %q; it is %s or %s", cfg.Transport, transportRDMA, transportTCP)
	case len(cfg.Regions) > 1<<16:
		return bad("%d Regions", len(cfg.Regions))
	}
	err := errors.Join(checkUTF8("Service", cfg.Service), checkUTF8("receiver", cfg.Receivers...))
	for i, r := range cfg.Regions {
		if r.Length == 0 {
			return bad("region %d, %q, is empty", i, r.Name)
		}
		err = errors.Join(err, checkUTF8("name of a region", r.Name))
	}
	if err != nil {
		return cfg, err
	}
	if cfg.Algorithm != "" {
		if err := new(schedule.Algorithm).UnmarshalText([]byte(cfg.Algorithm)); err != nil {
			return bad("Algorithm: %v", err)
		}
	}
	return cfg, nil
}

// Create creates a group, and returns when it is ready. On an error, nothing remains on any host.
// The error wraps one of this package's errors, or ctx's. Create waits for a daemon of this host
// that is away for as long as the daemon keeps sessions (beat.grace); then the error is ErrDaemon.
func (c *Client) Create(ctx context.Context, cfg GroupConfig) (*Group, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, err
	}
	if c.dev == nil && cfg.Mode == ModeRequire {
		return nil, fmt.Errorf("%w, mode require: this host has no device: %w", ErrNoSwitch, c.noDev)
	}
	c.mu.Lock()
	if err := c.errClosed(); err != nil {
		c.mu.Unlock()
		return nil, err
	}
	c.creating++
	c.wg.Add(1) // Close waits: until Create has returned, a queue pair may exist
	c.mu.Unlock()
	defer c.wg.Done()
	g, err := c.createUntil(ctx, cfg, time.Now().Add(cfg.Wait))
	if errors.Is(err, context.Canceled) && ctx.Err() == nil { // by Close
		err = errClientClosed
	}
	var strangers []GroupID
	c.mu.Lock()
	if c.creating--; c.creating == 0 {
		for id := range c.orphans {
			if c.groups[id] == nil {
				strangers = append(strangers, id)
			}
		}
		clear(c.orphans)
	}
	c.mu.Unlock()
	for _, id := range strangers {
		c.closeGroup(id, ErrClosed)
	}
	if err != nil {
		return nil, fmt.Errorf("create a group for %q: %w", cfg.Service, err)
	}
	return g, nil
}

// createUntil creates a group again while receivers are still starting, or if one ends before the group has begun.
func (c *Client) createUntil(ctx context.Context, cfg GroupConfig, deadline time.Time) (*Group, error) {
	var last error
	for {
		g := newGroup(c, cfg)
		err := g.create(ctx)
		if err == nil {
			return g, nil
		}
		g.stop(err)
		switch {
		case last != nil && ctx.Err() != nil:
			return nil, waitedError{last, ctx.Err()}
		case !g.startsLater(err) || !time.Now().Before(deadline):
			return nil, err
		}
		last = err
		select {
		case <-ctx.Done():
			return nil, waitedError{last, ctx.Err()}
		case <-time.After(createEvery):
		}
	}
}

// startsLater reports whether a group that could not be created may be soon.
func (g *Group) startsLater(err error) bool {
	if g.id.Number == 0 { // the daemon has not made it
		return errors.Is(err, ErrUnreachable)
	}
	_, unconnected := errors.AsType[*formationError](err)
	return unconnected || errors.Is(err, ErrMinSize)
}

func (g *Group) create(ctx context.Context) error {
	c := g.c
	b, err := g.bring(false)
	if err != nil {
		return err
	}
	resp, conn, err := g.ask(ctx, b)
	if err != nil {
		b.close()
		return err
	}
	g.id, g.cfg.MinSize = groupID(resp.GetFormation().GetGroup()), int(resp.GetMinSize())
	g.places = resp.GetRegions()
	err = g.checkRegions()
	if g.cfg.WaitForMinSize && !resp.GetWaits() {
		err = fmt.Errorf("%w: the daemon ends groups with too few receivers, and WaitForMinSize wants them to wait: update it", ErrVersion)
	}
	if err == nil {
		err = c.adopt(g, resp.GetFormation(), b, conn)
	}
	if err != nil {
		b.close()
		c.closeGroup(g.id, err)
		return err
	}
	// A receiver may die before the group is connected.
	stop := context.AfterFunc(ctx, func() { g.end(ctx.Err()) })
	select {
	case <-g.begun:
		if stop() {
			return nil
		}
	case <-g.ended:
		stop()
	}
	<-g.ended
	return g.Err()
}

// A waitedError combines the last error before a context ended with the context's error. Its text
// is that of the former, which says more.
type waitedError struct{ last, ended error }

func (e waitedError) Error() string   { return e.last.Error() }
func (e waitedError) Unwrap() []error { return []error{e.last, e.ended} }

// createEvery is the interval at which Create retries while receivers are still starting.
const createEvery = 100 * time.Millisecond

// ask asks the daemon to create the group. It returns the connection on which it asked.
func (g *Group) ask(ctx context.Context, b *brought) (resp *mcrdmav1.CreateGroupResponse, on *connection, err error) {
	c, cfg := g.c, &g.cfg
	req := &mcrdmav1.CreateGroupRequest{
		Service: cfg.Service, Receivers: cfg.Receivers, Mode: modes[cfg.Mode].wire, MinSize: uint32(cfg.MinSize),
		Dscp: uint32(cfg.DSCP), Forming: b.forming(), Algorithm: cfg.Algorithm, TypicalSize: uint64(cfg.TypicalSize), Transport: cfg.Transport,
		Waits: cfg.WaitForMinSize,
	}
	if c.dev != nil {
		req.Mtu = uint32(c.dev.Attr().ActiveMTU)
		if cfg.MTU != 0 {
			req.Mtu = min(req.Mtu, uint32(cfg.MTU))
		}
	}
	if cfg.CNPGap > 0 {
		req.CnpGap = durationpb.New(cfg.CNPGap)
	}
	for _, r := range cfg.Regions {
		req.Regions = append(req.Regions, &mcrdmav1.RegionSpec{Name: r.Name, Length: r.Length})
	}
	err = c.repeat(ctx, func(ctx context.Context) (_ *connection, err error) {
		on, err = c.readySoon(ctx)
		return on, err
	}, func(ctx context.Context) (err error) {
		req.Token = c.token()
		var at peer.Peer
		if resp, err = c.rpc.CreateGroup(ctx, req, grpc.Peer(&at)); at.Addr != nil {
			return fromStatus(err) // the request may have arrived, and the group may exist already: do not repeat it
		}
		return err
	})
	return resp, on, err
}

func (g *Group) checkRegions() error {
	if len(g.places) != len(g.cfg.Regions) {
		return fmt.Errorf("%w: it answered with %d regions instead of %d", ErrDaemon, len(g.places), len(g.cfg.Regions))
	}
	for i, r := range g.places {
		if r.GetLength() != g.cfg.Regions[i].Length {
			return fmt.Errorf("%w: it made region %d %d bytes long instead of %d", ErrDaemon, i, r.GetLength(), g.cfg.Regions[i].Length)
		}
	}
	return nil
}

// adopt adds a group that was created on that connection to the Client, and starts its life.
func (c *Client) adopt(g *Group, info *mcrdmav1.FormationInfo, b *brought, on *connection) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.errClosed(); err != nil {
		return err
	}
	c.groups[g.id] = g
	g.step(func(l *life) {
		l.created(info)
		for _, e := range c.orphans[g.id] {
			l.changed(e)
		}
	})
	delete(c.orphans, g.id)
	c.wg.Go(func() { g.run(b) })
	if c.connection != on { // the daemon was away meanwhile, and the other groups were resumed without this one
		c.wg.Go(func() { _ = c.repeat(g.ctx, c.ready, g.resume) })
	}
	return nil
}
