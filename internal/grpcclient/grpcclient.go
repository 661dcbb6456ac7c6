// Package grpcclient is a gRPC connection to another daemon or agent. It connects on first use,
// retries sooner than the kernel if packets are lost, and returns the error why connecting failed,
// which gRPC reports only as text.
//
//	c, err := grpcclient.New(grpcclient.Config{Target: …, Creds: …, Own: …})
//	unsent, err := c.Call(ctx, func(ctx context.Context) error { … }) // a request
//	if err != nil { … c.Last() … }
package grpcclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/grpcwindow"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// ConnectTime is how long one try to connect may take, with its handshake. Where one
// packet of twenty is lost by each of four links, that is enough.
const ConnectTime = 2 * time.Second

// lostTime is how long data on a connection between daemons may stay unacknowledged before
// the client gives the connection up: where many packets are lost, a new connection is
// faster than the kernel, which waits twice as long after each loss. The server is more
// patient: the client would not learn that it has given up.
const lostTime = time.Second

// reconnect is short, because beats detect by it that a daemon is back.
var reconnect = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 250 * time.Millisecond}

// Config says where to connect. All is required but Dial and More.
type Config struct {
	Target     string // "host:port"
	Creds      credentials.TransportCredentials
	Own        identity.Identity // of the caller
	MaxMessage int               // bytes
	// Dial makes one connection; nil: by TCP.
	Dial func(ctx context.Context, target string) (net.Conn, error)
	More []grpc.DialOption
}

// A Conn is a connection. Its methods may be called concurrently.
type Conn struct {
	*grpc.ClientConn
	watch *watcher
}

// New makes a connection, which connects when it is used. The dialer resolves names, and no
// proxy is used.
func New(c Config) (*Conn, error) {
	w := &watcher{TransportCredentials: c.Creds, once: c.Dial, waiting: map[*func()]struct{}{}}
	if w.once == nil {
		w.once = dialOnce
	}
	conn, err := grpc.NewClient("passthrough:///"+c.Target, append(append(grpcwindow.Dial(),
		grpc.WithTransportCredentials(w), grpc.WithContextDialer(w.dial), identity.Claim(c.Own),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.MaxMessage), grpc.MaxCallSendMsgSize(c.MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: lostTime}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: ConnectTime}),
		grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0)),
		c.More...)...)
	if err != nil {
		return nil, err
	}
	return &Conn{conn, w}, nil
}

// Ready says whether the connection is there.
func (c *Conn) Ready() bool { return c.GetState() == connectivity.Ready }

// Last is why the last try to connect failed; nil: it did not.
func (c *Conn) Last() error { return c.watch.last() }

// Acknowledged is how long ago the kernel at the other end has acknowledged something, or sent anything: it works, whatever
// its programs do. It is 0 if nothing that was sent is unacknowledged. ok is false if that is not known.
func (c *Conn) Acknowledged() (ago time.Duration, ok bool) {
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	return acknowledged(c.watch.raw)
}

// Explain is the error of a call in plain words: why there is no connection, or else what came back. It has the call's code.
func (c *Conn) Explain(err error) error {
	if last := c.Last(); err != nil && last != nil {
		return failure.Because(err, last)
	}
	return failure.Plain(err)
}

// Call makes a request, and makes it again if the connection had been lost unnoticed. It says
// whether no request can have arrived.
func (c *Conn) Call(ctx context.Context, f func(context.Context) error) (unsent bool, err error) {
	begun := time.Now()
	unsent, err = c.try(ctx, f)
	if status.Code(err) != codes.Unavailable || failure.Info(err) != nil || ctx.Err() != nil || time.Since(begun) >= ConnectTime ||
		Untrusted(c.Last()) {
		return unsent, err
	}
	if again, other := c.try(ctx, f); !again || unsent {
		return again, other
	}
	return false, err
}

func (c *Conn) try(ctx context.Context, f func(context.Context) error) (unsent bool, err error) {
	switch {
	case c.Wait(ctx, ConnectTime):
		return false, f(ctx)
	case errors.Is(context.Cause(ctx), context.Canceled):
		return true, status.FromContextError(ctx.Err()).Err()
	}
	return true, status.Error(codes.Unavailable, "no connection in time")
}

// Wait has the connection connect now, if it is not connecting, and waits until it is
// connected, is refused, or time is up. It reports whether it is connected.
func (c *Conn) Wait(ctx context.Context, most time.Duration) bool {
	if c.Ready() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	defer c.watch.onFailure(cancel)()
	if c.GetState() == connectivity.TransientFailure { // otherwise it races with gRPC's own first steps
		c.ResetConnectBackoff()
	}
	for {
		s := c.GetState()
		if s == connectivity.Ready {
			return true
		}
		c.Connect()
		if s == connectivity.Shutdown || !c.WaitForStateChange(ctx, s) {
			return false
		}
	}
}

// Untrusted reports whether a connection failed because one side rejects the other's
// certificate.
func Untrusted(err error) bool {
	return errors.Is(err, identity.ErrUntrusted) || errors.Is(err, identity.ErrWantsTLS) || errors.Is(err, identity.ErrMismatch) || errors.Is(err, identity.ErrNoIdentity) ||
		errors.Is(err, errRefused) || errors.As(err, new(*tls.CertificateVerificationError)) ||
		errors.As(err, new(tls.RecordHeaderError))
}

// A watcher is the credentials of a connection, and remembers why connecting failed.
type watcher struct {
	credentials.TransportCredentials
	once dialer

	mu      sync.Mutex
	err     error                // nil: the last connection was made
	waiting map[*func()]struct{} // called when one could not be made, and the next is unlikely to be
	raw     net.Conn             // the last connection that was made
}

func (d *watcher) note(err error) {
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
func (d *watcher) onFailure(f func()) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting[&f] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.waiting, &f)
	}
}

func (d *watcher) last() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

func (d *watcher) dial(ctx context.Context, target string) (net.Conn, error) {
	c, err := dialMany(ctx, target, d.once)
	if err != nil {
		d.note(err)
	}
	return c, err
}

func (d *watcher) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := d.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		d.note(err)
		return c, info, err
	}
	d.mu.Lock()
	d.raw = raw
	d.mu.Unlock()
	return &watchedConn{Conn: c, d: d}, info, nil
}

func (d *watcher) Clone() credentials.TransportCredentials { return d }

// A watchedConn finds out whether the server accepts the client's certificate: with TLS 1.3
// only what arrives after the handshake shows it.
type watchedConn struct {
	net.Conn
	d    *watcher
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
	case errors.Is(err, identity.ErrWantsTLS):
		c.d.note(err)
	case errors.As(err, &op) && op.Op == "remote error": // an alert
		c.d.note(fmt.Errorf("%w: %w: renew it, or have it issued by the same CA", errRefused, err))
	}
	return n, err
}
