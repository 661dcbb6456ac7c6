package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grpcwindow"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// goodbye is how long it may take to tell the daemon that something is closed.
const goodbye = 2 * time.Second

// slowDaemon is how long a daemon that is there may take to accept a connection: its host
// may be busy. One that is not there is noticed at once.
const slowDaemon = 10 * time.Second

// A Client is an application's session with the host's daemon, and its device. All
// methods may be called by any goroutine.
type Client struct {
	opt   Options
	conn  *grpc.ClientConn
	rpc   mcrdmav1.ApplicationsClient
	hello *mcrdmav1.Hello // the first
	device

	ctx    context.Context // the Client's life
	cancel context.CancelFunc
	wg     sync.WaitGroup // all goroutines

	mu sync.Mutex
	session
	closed    bool
	groups    map[GroupID]*Group
	creating  int                                  // calls of CreateGroup under way
	orphans   map[GroupID][]*mcrdmav1.GroupChanged // of groups that may still be in creation
	listeners map[string]*Listener
	members   map[GroupID]*Member
	memories  map[*Memory]struct{}
	port      unicastPort

	closing sync.Once
	err     error // of Close
}

// A device is what a Client has of it.
type device struct {
	dev       qp.Device // nil: there is none
	noDev     error     // why
	pd        qp.PD     // nil: there is no device
	opened    bool      // it is this Client's
	maxPieces int       // of one operation
}

// Dial begins a session with the daemon. It waits for a daemon that is still starting, up
// to Options.Wait, but not if the socket's directory does not exist or permission is
// denied. The error wraps ErrDaemon if the daemon can't be reached, ErrVersion if it speaks
// another version, or ErrDenied.
func Dial(ctx context.Context, o Options) (*Client, error) {
	o = o.withDefaults()
	conn, err := grpc.NewClient("unix:"+o.Socket, append(grpcwindow.Dial(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return o.Dial(ctx, "unix", o.Socket) }),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: slowDaemon,
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 500 * time.Millisecond}}))...)
	if err != nil {
		return nil, fmt.Errorf("%w socket %q: %w", ErrInvalid, o.Socket, err)
	}
	c := &Client{
		opt: o, conn: conn, rpc: mcrdmav1.NewApplicationsClient(conn),
		groups: map[GroupID]*Group{}, orphans: map[GroupID][]*mcrdmav1.GroupChanged{},
		listeners: map[string]*Listener{}, members: map[GroupID]*Member{},
		memories: map[*Memory]struct{}{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	s, err := c.first(ctx)
	if err == nil {
		c.hello, c.tok, c.grace = s.hello, s.hello.GetToken(), s.hello.GetGrace().AsDuration()
		err = c.openDevice()
	}
	if err != nil {
		c.cancel()
		return nil, errors.Join(fmt.Errorf("dial %s: %w", o.Socket, err), conn.Close())
	}
	close(c.connected().up)
	c.wg.Go(func() { c.listenTo(s) })
	c.wg.Go(c.watch)
	return c, nil
}

// openDevice opens the device that the daemon names, unless the application provided one.
func (c *Client) openDevice() error {
	c.dev, c.maxPieces = c.opt.Device, MaxPieces
	if c.dev == nil {
		dev, err := qp.Open(c.hello.GetDevice())
		if err != nil {
			c.noDev = err
			c.opt.Logger.Info("no RDMA device: groups are relayed over TCP", "device", c.hello.GetDevice(), "error", err)
			return nil
		}
		c.dev, c.opened = dev, true
	}
	err := c.checkDevice()
	if err != nil && c.opened {
		err = errors.Join(err, c.dev.Close())
	}
	return err
}

// noDeviceText says why there is no device; empty: there is one.
func (c *Client) noDeviceText() string {
	if c.noDev == nil {
		return ""
	}
	return c.noDev.Error()
}

func (c *Client) checkDevice() (err error) {
	if addr := c.dev.Attr().Addr.String(); addr != c.hello.GetAddress() {
		return fmt.Errorf("%w device: its address is %s, the daemon's configuration says %s", ErrInvalid, addr, c.hello.GetAddress())
	}
	c.maxPieces = min(MaxPieces, c.dev.Attr().MaxSGE)
	c.pd, err = c.dev.AllocPD()
	return err
}

// Host returns the name of this host, as the daemon knows it.
func (c *Client) Host() string { return c.hello.GetHost() }

// Address returns the address of this host's device.
func (c *Client) Address() string { return c.hello.GetAddress() }

// Device returns the device; nil if there is none.
func (c *Client) Device() qp.Device { return c.dev }

// Close ends the session and all that belongs to it: it closes groups and listeners, leaves
// groups as a member, and deregisters memory. Operations under way fail with ErrClosed. To
// complete them, close their groups first. Close may be called again.
func (c *Client) Close() error {
	c.closing.Do(func() { c.err = c.close() })
	return c.err
}

func (c *Client) close() error {
	c.mu.Lock()
	c.closed = true
	var parts []func()
	for _, g := range c.groups {
		parts = append(parts, func() { _ = g.Close(ended) })
	}
	for _, m := range c.members {
		parts = append(parts, func() { _ = m.Close() })
	}
	for _, l := range c.listeners {
		parts = append(parts, func() { _ = l.Close() })
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, f := range parts {
		wg.Go(f)
	}
	wg.Wait()
	c.cancel()
	err := c.conn.Close()
	c.wg.Wait()
	c.mu.Lock()
	memories := slices.Collect(maps.Keys(c.memories))
	c.mu.Unlock()
	for _, m := range memories {
		err = errors.Join(err, m.deregister())
	}
	if c.pd != nil {
		err = errors.Join(err, ignoreClosed(c.pd.Close()))
	}
	if c.opened {
		err = errors.Join(err, ignoreClosed(c.dev.Close()))
	}
	return err
}

// ignoreClosed ignores qp.ErrClosed: the application may have closed an object before, with
// its device.
func ignoreClosed(err error) error {
	if errors.Is(err, qp.ErrClosed) {
		return nil
	}
	return err
}

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// watch checks for stalled groups every lookAfter, and earlier when one may be stalled.
func (c *Client) watch() {
	timer := time.NewTimer(lookAfter)
	defer timer.Stop()
	var groups []*Group
	for {
		select {
		case <-c.ctx.Done():
			return
		case now := <-timer.C:
			c.mu.Lock()
			groups = slices.AppendSeq(groups[:0], maps.Values(c.groups))
			c.mu.Unlock()
			next := lookAfter
			for _, g := range groups {
				next = min(next, g.watch(now))
			}
			timer.Reset(max(next, time.Millisecond))
		}
	}
}

// lookAfter is the longest time between two checks. A group with a shorter patience is
// checked more often from the first check on.
const lookAfter = 50 * time.Millisecond

var errClientClosed = fmt.Errorf("%w: the Client was closed", ErrClosed)

// errClosed says that the Client is closed, under c.mu.
func (c *Client) errClosed() error {
	if c.closed {
		return errClientClosed
	}
	return nil
}
