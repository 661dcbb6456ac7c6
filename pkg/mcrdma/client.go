package mcrdma

import (
	"context"
	"errors"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

var errUnderWay = errors.New("mcrdma: this call is not built yet")

// A Client is an application's session with the host's daemon, and its device. All
// methods may be called by any goroutine.
type Client struct {
	opt Options
	pd  qp.PD // nil: there is no device
}

// Dial begins a session with the daemon. The error wraps ErrDaemon if it can't be
// reached, ErrVersion if it speaks another version, or ErrDenied.
func Dial(ctx context.Context, o Options) (*Client, error) { return nil, errUnderWay }

// Host returns the name of this host, as the daemon knows it.
func (c *Client) Host() string { return "" }

// Address returns the address of this host's device.
func (c *Client) Address() string { return "" }

// Device returns the device; nil if there is none.
func (c *Client) Device() qp.Device { return nil }

// Close ends the session and all that belongs to it: groups and listeners are closed,
// members leave, memory is deregistered. Operations under way fail with ErrClosed.
// To have them complete, close their groups first. Close may be called again.
func (c *Client) Close() error { return errUnderWay }
