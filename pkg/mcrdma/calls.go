package mcrdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// A session is a Client's session with the daemon.
type session struct {
	connection *connection
	tok        string
	grace      time.Duration // for which the daemon keeps it
}

// A connection is one of the session's connections to the daemon.
type connection struct {
	ctx  context.Context // until it is lost
	lost context.CancelFunc
	up   chan struct{} // closed when everything has been resumed and calls can be made
}

func (c *Client) token() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tok
}

// patience returns how long the daemon may be away: the time for which it keeps sessions.
func (c *Client) patience() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.grace, defaultGrace)
}

func away(patience time.Duration) error {
	return fmt.Errorf("%w has been away for more than %v, for which it keeps sessions", ErrDaemon, patience)
}

// lost reports whether a call failed because the daemon is gone, or the call's context
// ended; it is false for errors that daemons return themselves.
func lost(err error) bool {
	return errinfo.Info(err) == nil && slices.Contains([]codes.Code{codes.Unavailable, codes.Canceled, codes.DeadlineExceeded}, status.Code(err))
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
			select {
			case <-conn.up:
			default:
				if errors.Is(ctx.Err(), context.DeadlineExceeded) {
					return nil, fmt.Errorf("%w is not there: %w", ErrDaemon, ctx.Err())
				}
			}
			return nil, ctx.Err() // by the caller: that is no failure of the daemon
		case <-conn.ctx.Done():
			if c.ctx.Err() != nil {
				return nil, errClientClosed
			}
		}
	}
}

// readySoon waits for the daemon for as long as it keeps the session. After that a caller must give
// up, because the other hosts do not wait longer, either.
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

// call makes an idempotent call: if the daemon goes away meanwhile, the call is repeated when it is
// back, if that is soon.
func call[Req, Resp any](ctx context.Context, c *Client, f func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (resp Resp, err error) {
	err = c.repeat(ctx, c.readySoon, func(ctx context.Context) (err error) {
		resp, err = f(ctx, req)
		return err
	})
	return resp, err
}

// repeat repeats a call until it is not lost.
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

// say tells the daemon that something has ended, by an idempotent call. If the daemon cannot be
// reached now, it is told when it is back: otherwise it would wait for the object, and report it to
// the others as lost.
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

// closeGroup asks the daemon to end a group. The members get ErrClosed, or ErrSenderLost with why if
// that is another error.
func (c *Client) closeGroup(id GroupID, why error) {
	failed := ""
	if !errors.Is(why, ErrClosed) {
		failed = why.Error()
	}
	err := c.say(func(ctx context.Context) error {
		_, err := c.rpc.CloseGroup(ctx, &mcrdmav1.CloseGroupRequest{Token: c.token(), Group: id.wire(), Failed: failed})
		return err
	})
	if err != nil {
		c.opt.Logger.Warn("close a group", "group", id, "error", err)
	}
}
