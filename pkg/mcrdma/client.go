package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

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
	closed    chan struct{} // closed by Close
	groups    map[GroupID]*Group
	creating  int                                  // calls of CreateGroup under way
	orphans   map[GroupID][]*mcrdmav1.GroupChanged // of groups that may still be in creation
	listeners map[string]*Listener
	members   map[GroupID]*Member
	memories  map[*Memory]struct{}
	port      unicastPort

	closing func() error // Close, once
}

// A device is what a Client has of it.
type device struct {
	dev       qp.Device // nil: there is none
	noDev     error     // why
	pd        qp.PD     // nil: there is no device
	opened    bool      // it is this Client's
	maxPieces int       // of one operation
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

// Device returns the device, or nil if there is none.
func (c *Client) Device() qp.Device { return c.dev }

// forget removes an entry of one of the Client's tables, if it is that value.
func forget[K, V comparable](c *Client, table map[K]V, key K, value V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if table[key] == value {
		delete(table, key)
	}
}

var errClientClosed = fmt.Errorf("%w: the Client was closed", ErrClosed)

func (c *Client) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// errClosed says that the Client is closed, under c.mu.
func (c *Client) errClosed() error {
	if c.isClosed() {
		return errClientClosed
	}
	return nil
}
