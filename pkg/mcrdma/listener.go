package mcrdma

import (
	"context"
	"fmt"
	"sync"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A ListenConfig configures a Listener.
type ListenConfig struct {
	// Service is 1 to 64 letters, digits, '.', '-', '_'.
	Service string
	// Accept decides whether to join a group, and which memory the group gets. An error refuses;
	// the sender gets its text. It is called in a separate goroutine for each group, and should
	// return within a second. If the group is not formed after all, Listener.Accept returns no
	// Member for it, or, if the sender gave up just then, one that ends with ErrFailed; and the
	// memory is free again.
	Accept func(*Request) (*Grant, error)
}

// A Request is a sender's request to join its group.
type Request struct {
	Service string
	Sender  string // host, by its certificate
	Program string // of the sender
	Group   GroupID
	Regions []Region
}

// A Grant is the memory that a receiver gives to a group.
type Grant struct {
	// Regions has a Piece for each region of the request, in the same order and at least as long.
	// The sender can write and read only these bytes, up to the length that it requested.
	Regions []Piece
	// Receives are posted, as by PostRecv, before anything arrives.
	Receives []Piece
	// Replenish makes Recv post receives again: the application may use what Recv has returned
	// until its next call of Recv, which posts that receive again. Only one goroutine at a time may
	// call Recv then, and the application need not call PostRecv.
	Replenish bool
}

// A Listener accepts groups for a service. All methods may be called by any goroutine.
type Listener struct {
	c   *Client
	cfg ListenConfig

	mu     sync.Mutex
	ready  inbox[*Member]
	ended  chan struct{}
	closed bool
}

// Listen offers a service. The error wraps ErrInvalid, ErrDenied if another application of this
// host offers the service, or ErrDaemon.
func (c *Client) Listen(ctx context.Context, cfg ListenConfig) (*Listener, error) {
	if cfg.Service == "" || cfg.Accept == nil {
		return nil, fmt.Errorf("%w: to listen takes a Service and Accept", ErrInvalid)
	}
	if err := checkUTF8("Service", cfg.Service); err != nil {
		return nil, err
	}
	l := &Listener{c: c, cfg: cfg, ready: newInbox[*Member](), ended: make(chan struct{})}
	c.mu.Lock()
	err := c.errClosed()
	if err == nil && c.listeners[cfg.Service] != nil {
		err = fmt.Errorf("%w: this Client listens for %q already", ErrInvalid, cfg.Service)
	}
	if err == nil {
		c.listeners[cfg.Service] = l // requests may come before the answer
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if _, err := call(ctx, c, c.rpc.Listen, &mcrdmav1.ListenRequest{Token: c.token(), Service: cfg.Service}); err != nil {
		if ctx.Err() != nil { // the daemon may have the offer, which would keep the service from other applications
			_ = l.Close()
		}
		l.forget()
		return nil, fmt.Errorf("listen for %q: %w", cfg.Service, err)
	}
	return l, nil
}

// forget removes the listener from its Client, once, and ends the members that were not
// accepted.
func (l *Listener) forget() (first bool) {
	forget(l.c, l.c.listeners, l.cfg.Service, l)
	l.mu.Lock()
	first = !l.closed
	if first {
		l.closed = true
		close(l.ended)
	}
	var waiting []*Member
	for l.ready.len() > 0 {
		waiting = append(waiting, l.ready.pop())
	}
	l.mu.Unlock()
	for _, m := range waiting {
		_ = m.Close()
	}
	return first
}

// Accept returns this application's membership in the next group. The error wraps ErrClosed, or is
// ctx's.
func (l *Listener) Accept(ctx context.Context) (*Member, error) {
	m, ok, err := l.ready.wait(ctx, &l.mu, l.ended)
	if !ok && err == nil {
		err = fmt.Errorf("%w: the listener for %q", ErrClosed, l.cfg.Service)
	}
	return m, err
}

// Close stops listening. Accepted members go on. It may be called again.
func (l *Listener) Close() error {
	if !l.forget() {
		return nil
	}
	ctx, cancel := context.WithTimeout(l.c.ctx, goodbye)
	defer cancel()
	_, err := call(ctx, l.c, l.c.rpc.Unlisten, &mcrdmav1.UnlistenRequest{Token: l.c.token(), Service: l.cfg.Service})
	if err != nil {
		return fmt.Errorf("end the offer of %q: %w", l.cfg.Service, err)
	}
	return nil
}
