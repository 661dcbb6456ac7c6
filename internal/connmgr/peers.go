package connmgr

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// A peer is the daemon of another host, known by the address of its RDMA device.
type peer struct {
	m          *Manager
	addr       netip.Addr
	name       string // that its certificate must have; "": any that owns the address
	target     string
	configured bool
	conn       *grpc.ClientConn
	rpc        mcrdmav1.HostsClient
	dialState  *dialState

	// Under Manager.mu.
	users  int // calls and formations that use it
	idle   time.Time
	beats  int       // that are under way
	beaten time.Time // when the last beat was sent
	trip   time.Duration
	err    error // of the last call; nil: it answered
	tried  bool
	asked  time.Time // for a status
}

func (p *peer) String() string {
	if p.name != "" {
		return p.name
	}
	return p.addr.String()
}

// connectTime is how long one try to connect may take, with its handshake. Where one
// packet of twenty is lost by each of four links, that is enough.
const connectTime = 2 * time.Second

// lostTime is how long data on a connection between daemons may stay unacknowledged before
// the client gives the connection up: where many packets are lost, a new connection is
// faster than the kernel, which waits twice as long after each loss. The server is more
// patient: the client would not learn that it has given up.
const lostTime = time.Second

// reconnect is short, because beats detect by it that a daemon is back.
var reconnect = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 250 * time.Millisecond}

// dialOptions are those of all connections to others. The dialer resolves names, and no
// proxy is used.
func dialOptions(d *dialState, own identity.Identity) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(d), grpc.WithContextDialer(d.dial), identity.Claim(own),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: lostTime}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: connectTime}),
		grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
	}
}

// own returns this daemon's identity.
func (m *Manager) own() identity.Identity {
	return identity.Identity{Role: identity.Host, Name: m.name, Addrs: []netip.Addr{m.addr}}
}

// newPeer makes a peer. It connects when it is used.
func (m *Manager) newPeer(h config.Host, configured bool) (*peer, error) {
	creds, err := m.files.Client(identity.Identity{Role: identity.Host, Name: h.Name, Addrs: []netip.Addr{h.Address}})
	if err != nil {
		return nil, err
	}
	p := &peer{m: m, addr: h.Address, name: h.Name, target: h.Daemon, configured: configured, dialState: &dialState{TransportCredentials: creds, once: m.opts.Dial}, idle: time.Now()}
	p.conn, err = grpc.NewClient("passthrough:///"+h.Daemon, append(dialOptions(p.dialState, m.own()), m.opts.DialHosts...)...)
	if err != nil {
		return nil, fmt.Errorf("the daemon of %v: %w", p, err)
	}
	p.rpc = mcrdmav1.NewHostsClient(p.conn)
	return p, nil
}

func (m *Manager) dialConfigured() error {
	for _, h := range m.cfg.Hosts {
		if h.Address == m.addr {
			continue
		}
		p, err := m.newPeer(h, true)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
		m.peers[p.addr] = p
	}
	return nil
}

// warm connects to the hosts of the configuration before they are needed.
func (m *Manager) warm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.peers {
		p.conn.Connect()
	}
}

// peerAt returns the daemon of the host with that address; it is in use until letPeer.
func (m *Manager) peerAt(addr netip.Addr) (*peer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := m.peerLocked(addr)
	if err != nil {
		return nil, err
	}
	p.users++
	return p, nil
}

func (m *Manager) peerLocked(addr netip.Addr) (*peer, error) {
	if p := m.peers[addr]; p != nil {
		return p, nil
	}
	p, err := m.newPeer(config.Host{Address: addr, Daemon: netip.AddrPortFrom(addr, config.DefaultPort).String()}, false)
	if err == nil {
		m.peers[addr] = p
	}
	return p, err
}

func (m *Manager) letPeer(p *peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.users--
	p.idle = time.Now()
	if m.spare(p) && (p.conn.GetState() != connectivity.Ready || len(m.peers) > len(m.cfg.Hosts)+maxIdlePeers) {
		m.closeIdle(p.idle)
	}
}

// idleTime is how long a connection to a host that is not configured is kept
// without use.
const idleTime = 5 * time.Minute

// spare reports whether a peer is neither configured nor used, nor in a group. It is called
// with Manager.mu.
func (m *Manager) spare(p *peer) bool {
	return !p.configured && p.users == 0 && !m.health.Follows(p.addr)
}

// closeIdle closes connections that are unlikely to be used again: those that are not
// established, those not used for long, and if there are too many, the longest idle. It is
// called with Manager.mu.
func (m *Manager) closeIdle(now time.Time) {
	var idle []*peer
	for _, p := range m.peers {
		if m.spare(p) {
			idle = append(idle, p)
		}
	}
	slices.SortFunc(idle, func(x, y *peer) int { return y.idle.Compare(x.idle) })
	for i, p := range idle {
		if i >= maxIdlePeers || now.Sub(p.idle) > idleTime || p.conn.GetState() != connectivity.Ready {
			delete(m.peers, p.addr)
			_ = p.conn.Close()
		}
	}
}

// call makes a call and records whether the peer answers. It may make the call twice.
func (p *peer) call(ctx context.Context, f func(context.Context) error) error {
	begun := time.Now()
	unsent, err := p.dialState.call(ctx, p.conn, connectTime, f)
	err = p.explain(ctx, err)
	if unsent {
		err = &unsentError{err}
	}
	p.m.metrics.peerCall(time.Since(begun), err)
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.tried = true
	p.err = nil
	if failure.Is(err, mcrdmav1.Reason_UNREACHABLE) || failure.Is(err, mcrdmav1.Reason_UNTRUSTED) {
		p.err = err
	}
	return err
}

// ask makes a request by the call of a peer or of the switch's agent.
func ask[Req, Res any](ctx context.Context, call func(context.Context, func(context.Context) error) error,
	rpc func(context.Context, Req, ...grpc.CallOption) (Res, error), req Req) (res Res, err error) {
	err = call(ctx, func(ctx context.Context) (err error) {
		res, err = rpc(ctx, req)
		return err
	})
	return res, err
}

// An unsentError is the error of a request that cannot have arrived.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }

// call makes a call on a connection, and makes it again if the connection had been lost
// unnoticed. It says whether no request can have arrived.
func (d *dialState) call(ctx context.Context, conn *grpc.ClientConn, most time.Duration, f func(context.Context) error) (unsent bool, err error) {
	begun := time.Now()
	unsent, err = d.try(ctx, conn, most, f)
	if status.Code(err) != codes.Unavailable || failure.Info(err) != nil || ctx.Err() != nil || time.Since(begun) >= most ||
		conn.GetState() == connectivity.Ready || untrusted(d.last()) {
		return unsent, err
	}
	if again, other := d.try(ctx, conn, most, f); !again || unsent {
		return again, other
	}
	return false, err
}

func (d *dialState) try(ctx context.Context, conn *grpc.ClientConn, most time.Duration, f func(context.Context) error) (unsent bool, err error) {
	switch {
	case d.connect(ctx, conn, most):
		return false, f(ctx)
	case errors.Is(context.Cause(ctx), context.Canceled):
		return true, status.FromContextError(ctx.Err()).Err()
	}
	return true, status.Error(codes.Unavailable, "no connection in time")
}

// connect makes a connection connect now, if it is not connecting, and waits until it is
// connected, is refused, or time is up. It reports whether it is connected.
func (d *dialState) connect(ctx context.Context, conn *grpc.ClientConn, most time.Duration) bool {
	if conn.GetState() == connectivity.Ready {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	defer d.onFailure(cancel)()
	if conn.GetState() == connectivity.TransientFailure { // otherwise it races with gRPC's own first steps
		conn.ResetConnectBackoff()
	}
	for {
		s := conn.GetState()
		if s == connectivity.Ready {
			return true
		}
		conn.Connect()
		if s == connectivity.Shutdown || !conn.WaitForStateChange(ctx, s) {
			return false
		}
	}
}

// explain says what the error of a call to a peer means.
func (p *peer) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	name := p.String()
	if f := failure.Read(err); f != nil {
		f.Host = cmp.Or(f.Host, name)
		return f
	}
	s := status.Convert(err)
	text := failure.Clip(s.Message(), failure.MaxText)
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
	return p.unreachable(text)
}

// unreachable says why there is no connection; text is what else is known.
func (p *peer) unreachable(text string) *failure.Error {
	if cause := p.dialState.last(); cause != nil {
		if untrusted(cause) {
			return failure.New(mcrdmav1.Reason_UNTRUSTED, "its daemon at %s: %v", p.target, cause).AtHost(p.String())
		}
		text = cause.Error()
	}
	return failure.New(mcrdmav1.Reason_UNREACHABLE, "its daemon at %s does not answer: see whether cmd-daemon runs there, and the way to it (%s)", p.target, text).AtHost(p.String())
}

// untrusted reports whether a connection failed because one side rejects the other's
// certificate.
func untrusted(err error) bool {
	return errors.Is(err, identity.ErrUntrusted) || errors.Is(err, identity.ErrMismatch) || errors.Is(err, identity.ErrNoIdentity) ||
		errors.Is(err, errRefused) || errors.As(err, new(*tls.CertificateVerificationError)) ||
		errors.As(err, new(tls.RecordHeaderError))
}

// A dialState is the credentials of a connection, and remembers why connecting failed: gRPC
// reports that only as text.
type dialState struct {
	credentials.TransportCredentials
	once dialer // Options.Dial

	mu      sync.Mutex
	err     error                // nil: the last connection was made
	waiting map[*func()]struct{} // called when one could not be made, and the next is unlikely to be
}

func (d *dialState) note(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	if timeout := net.Error(nil); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		return // or packets were lost
	}
	for f := range d.waiting {
		(*f)()
	}
}

// onFailure has f called when a connection cannot be made, until stop is called.
func (d *dialState) onFailure(f func()) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting == nil {
		d.waiting = map[*func()]struct{}{}
	}
	d.waiting[&f] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.waiting, &f)
	}
}

func (d *dialState) last() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

func (d *dialState) dial(ctx context.Context, target string) (net.Conn, error) {
	c, err := dialMany(ctx, target, d.once)
	if err != nil {
		d.note(err)
	}
	return c, err
}

func (d *dialState) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := d.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		d.note(err)
		return c, info, err
	}
	return &watchedConn{Conn: c, d: d}, info, nil
}

func (d *dialState) Clone() credentials.TransportCredentials { return d }

// A watchedConn finds out whether the server accepts the client's certificate: with TLS 1.3
// only what arrives after the handshake shows it.
type watchedConn struct {
	net.Conn
	d    *dialState
	read bool // something has come; the reader's
}

var errRefused = errors.New("it does not take this host's certificate")

func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	switch op := (*net.OpError)(nil); {
	case c.read:
	case n > 0:
		c.read = true
		c.d.note(nil)
	case errors.As(err, &op) && op.Op == "remote error": // an alert
		c.d.note(fmt.Errorf("%w: %w: renew it, or have it issued by the same CA", errRefused, err))
	}
	return n, err
}
