package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grpcwindow"
)

const (
	defaultWait = 10 * time.Second
	dialEvery   = 50 * time.Millisecond
)

// slowDaemon is how long a running daemon may take to accept a connection, because its host may be
// busy. If no daemon is running, connecting fails at once.
const slowDaemon = 10 * time.Second

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
		memories: map[*Memory]struct{}{}, closed: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.closing = sync.OnceValue(c.close)
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

// first begins the session, and waits for a daemon that is still starting.
func (c *Client) first(ctx context.Context) (*stream, error) {
	late := time.After(c.opt.Wait)
	last := errStarting
	for waits := false; ; waits = true {
		s, err := c.firstTry(ctx)
		if err == nil || ctx.Err() == nil && !errors.Is(err, errStarting) {
			return s, err
		}
		if ctx.Err() == nil {
			last = err
		}
		if !waits {
			c.opt.Logger.Info("waiting for the daemon", "socket", c.opt.Socket, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w %w: %w", ErrDaemon, last, ctx.Err())
		case <-late:
			return nil, fmt.Errorf("%w %w; start it with cmd-daemon run, or as a service with systemctl start cmd-daemon; "+
				"another one's socket is named by MCRDMA_SOCKET or Options.Socket", ErrDaemon, last)
		case <-time.After(dialEvery):
		}
	}
}

// errStarting: a daemon may be running soon.
var errStarting = errors.New("does not answer")

func (c *Client) firstTry(ctx context.Context) (*stream, error) {
	if err := c.reachable(ctx); err != nil {
		return nil, err
	}
	s, err := c.open(ctx, "")
	if errors.Is(err, ErrDaemon) && !errors.Is(err, &Error{Reason: mcrdmav1.Reason_NOT_FOUND}) {
		return nil, fmt.Errorf("%w: %w", errStarting, err) // it ended meanwhile, or does not serve yet
	}
	return s, err
}

// reachable returns a readable error instead of gRPC's code. It wraps errStarting if waiting may
// help.
func (c *Client) reachable(ctx context.Context) error {
	socket := c.opt.Socket
	conn, err := c.opt.Dial(ctx, "unix", socket)
	if err == nil {
		return conn.Close()
	}
	dir := filepath.Dir(socket)
	switch info, statErr := os.Stat(dir); {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(statErr, fs.ErrNotExist):
		return fmt.Errorf("%w: there is no directory %s, so no daemon runs there: start cmd-daemon, "+
			"or name its socket by MCRDMA_SOCKET or Options.Socket", ErrDaemon, dir)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: no permission to use its socket: the user must be in the group of %s", ErrDenied, socket)
	case statErr == nil && !info.IsDir(), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOTSOCK), errors.Is(err, syscall.EPROTOTYPE):
		return fmt.Errorf("%w socket %q: %w", ErrInvalid, socket, errors.Unwrap(err))
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: it has made no socket yet", errStarting)
	case errors.Is(err, syscall.ECONNREFUSED):
		if info, err := os.Stat(socket); err == nil && info.Mode()&fs.ModeSocket == 0 {
			return fmt.Errorf("%w socket %q: it is not a socket", ErrInvalid, socket)
		}
		return errStarting
	}
	return fmt.Errorf("%w: %w", errStarting, errors.Unwrap(err))
}
