package connmgr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/connmgr/health"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/grpcclient"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// peers are the daemons of the other hosts, and the health of these hosts.
type peers struct {
	connect  func(config.Host) (*grpcclient.Conn, error)
	metrics  *metrics
	interval time.Duration // of beats

	mu      sync.Mutex
	at      map[netip.Addr]*peer
	health  *health.Tracker         // of the hosts in which groups have receivers
	answers map[netip.Addr]answered // of these, as switches have counted them
}

// A peer is the daemon of another host, known by the address of its RDMA device.
type peer struct {
	of     *peers
	addr   netip.Addr
	name   string // the name in its certificate; "": the host is not configured, and any that owns the address will do
	target string
	conn   *grpcclient.Conn
	rpc    mcrdmav1.HostsClient

	// Under peers.mu.
	users int // calls and formations that use it
	idle  time.Time
	beats int    // that are under way
	list  uint64 // of groups, confirmed by the latest answer to a beat
	trip  time.Duration
	err   error     // of the last call, or errNotTried; nil: it answered
	asked time.Time // for a status
	sharing
}

// errNotTried is the error of a peer before the first call.
var errNotTried = errors.New("it was not called yet")

// connect makes a connection to another daemon or an agent.
func (m *Manager) connect(target string, to identity.Identity) (*grpcclient.Conn, error) {
	creds, err := m.files.Client(to)
	if err != nil {
		return nil, err
	}
	return grpcclient.New(grpcclient.Config{Target: target, Creds: creds, Own: m.identity(), MaxMessage: maxMessage, Dial: m.opts.Dial, More: m.opts.DialOptions})
}

func newPeers(m *Manager) *peers {
	return &peers{metrics: m.metrics, interval: m.cfg.Beat.Interval, at: map[netip.Addr]*peer{}, answers: map[netip.Addr]answered{},
		health: health.New(health.Config{Interval: m.cfg.Beat.Interval, DeadAfter: m.cfg.Beat.DeadAfter, Grace: m.cfg.Beat.Grace}),
		connect: func(h config.Host) (*grpcclient.Conn, error) {
			return m.connect(h.Daemon, identity.Identity{Role: identity.Host, Name: h.Name, Addrs: []netip.Addr{h.Address}})
		}}
}

// configure adds the hosts of the configuration.
func (t *peers) configure(hosts []config.Host) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range hosts {
		p, err := t.newPeer(h)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
		t.at[p.addr] = p
	}
	return nil
}

// newPeer makes a peer, which connects when it is used.
func (t *peers) newPeer(h config.Host) (*peer, error) {
	conn, err := t.connect(h)
	if err != nil {
		return nil, fmt.Errorf("the daemon of %v: %w", h.Address, err)
	}
	return &peer{of: t, addr: h.Address, name: h.Name, target: h.Daemon, conn: conn, rpc: mcrdmav1.NewHostsClient(conn), idle: time.Now(), err: errNotTried}, nil
}

// get is called with peers.mu.
func (t *peers) get(addr netip.Addr) (*peer, error) {
	if p := t.at[addr]; p != nil {
		return p, nil
	}
	p, err := t.newPeer(config.Host{Address: addr, Daemon: netip.AddrPortFrom(addr, config.DefaultPort).String()})
	if err == nil {
		t.at[addr] = p
	}
	return p, err
}

// warm connects to the hosts of the configuration before they are needed.
func (t *peers) warm() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.at {
		p.conn.Connect()
	}
}

func (t *peers) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.at {
		_ = p.conn.Close()
	}
}

// use returns the daemon of the host with that address, which is in use until let is called.
func (t *peers) use(addr netip.Addr) (*peer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.get(addr)
	if err == nil {
		p.users++
	}
	return p, err
}

func (p *peer) let() {
	t := p.of
	t.mu.Lock()
	defer t.mu.Unlock()
	p.users--
	p.idle = time.Now()
	if t.spare(p) {
		t.closeIdleLocked(p.idle)
	}
}

// idleTime is how long a connection to a host that is not configured is kept
// without use.
const idleTime = 5 * time.Minute

// spare reports whether a peer is neither configured nor used, nor in a group. It is called
// with peers.mu.
func (t *peers) spare(p *peer) bool {
	return p.name == "" && p.users == 0 && !t.health.Follows(p.addr)
}

// closeIdle closes connections that are unlikely to be used again: those that are not
// established, those not used for long, and if there are too many, the longest idle. It is called
// without Manager.mu, because it may wait for the network.
func (t *peers) closeIdle(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeIdleLocked(now)
}

func (t *peers) closeIdleLocked(now time.Time) {
	var idle []*peer
	for _, p := range t.at {
		if t.spare(p) {
			idle = append(idle, p)
		}
	}
	slices.SortFunc(idle, func(x, y *peer) int { return y.idle.Compare(x.idle) })
	for i, p := range idle {
		if i >= maxIdlePeers || now.Sub(p.idle) > idleTime || !p.conn.Ready() {
			delete(t.at, p.addr)
			_ = p.conn.Close()
		}
	}
}

// call makes a call and records whether the peer answers. It may repeat the call once.
func (p *peer) call(ctx context.Context, f func(context.Context) error) error {
	begun := time.Now()
	unsent, err := p.conn.Call(ctx, f)
	err = p.explain(ctx, err)
	if unsent {
		err = &unsentError{err}
	}
	p.of.metrics.peerCall(time.Since(begun), err)
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.err = nil
	if failure.Is(err, mcrdmav1.Reason_UNREACHABLE) || failure.Is(err, mcrdmav1.Reason_UNTRUSTED) {
		p.err = err
	}
	return err
}

// askHost makes a request of the daemon of a host.
func askHost[Req, Res any](ctx context.Context, t *peers, a netip.Addr,
	rpc func(mcrdmav1.HostsClient, context.Context, Req, ...grpc.CallOption) (Res, error), req Req) (res Res, err error) {
	p, err := t.use(a)
	if err != nil {
		return res, err
	}
	defer p.let()
	err = p.call(ctx, func(ctx context.Context) (err error) {
		res, err = rpc(p.rpc, ctx, req)
		return err
	})
	return res, err
}

// An unsentError is the error of a request that cannot have arrived.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }

// explain adds a cause to the error of a call to a peer.
func (p *peer) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	name := cmp.Or(p.name, p.addr.String())
	if f := failure.Read(err); f != nil {
		f.Host = cmp.Or(f.Host, name)
		return f
	}
	s := status.Convert(err)
	text := failure.Said(err)
	switch s.Code() {
	case codes.Unimplemented:
		return failure.New(mcrdmav1.Reason_VERSION, "its daemon does not know the request (%s): update the older of the two daemons", text).AtHost(name)
	case codes.Unauthenticated:
		return failure.New(mcrdmav1.Reason_UNTRUSTED, "%s", text).AtHost(name)
	case codes.PermissionDenied:
		return failure.New(mcrdmav1.Reason_DENIED, "%s", text).AtHost(name)
	case codes.Canceled:
		if ctx.Err() != nil {
			return ctx.Err()
		}
	case codes.DeadlineExceeded:
		return failure.New(mcrdmav1.Reason_UNREACHABLE, "its daemon at %s did not answer in time: see whether cmd-daemon runs there, and the way to it", p.target).AtHost(name)
	}
	if cause := p.conn.Last(); grpcclient.Untrusted(cause) {
		return failure.New(mcrdmav1.Reason_UNTRUSTED, "its daemon at %s: %v", p.target, cause).AtHost(name)
	}
	return failure.New(mcrdmav1.Reason_UNREACHABLE, "its daemon at %s does not answer: see whether cmd-daemon runs there, and the way to it (%v)", p.target, p.conn.Explain(err)).AtHost(name)
}
