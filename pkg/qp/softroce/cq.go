package softroce

import (
	"context"
	"fmt"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A CQ is a completion queue: a ring, which grows to what was ever in it.
type CQ struct {
	dev   *Device
	depth int
	users int // queue pairs × directions; guarded by the device's lock

	mu      sync.Mutex
	ring    []qp.WC
	head, n int
	overrun overrunState
	closed  bool
	waiters int
	wake    chan struct{} // room for one token, which passes from waiter to waiter
	done    chan struct{} // closed by destroy
}

type overrunState uint8

const (
	notOverrun overrunState = iota
	overrunNew              // Poll has not reported it yet
	overrunTold
)

const firstCQEs = 8 // of a ring

// CreateCQ implements qp.Device.
func (d *Device) CreateCQ(depth int) (qp.CQ, error) {
	if depth < 1 || depth > MaxCQE {
		return nil, fmt.Errorf("softroce: %w: completion queue depth %d is not 1..%d", qp.ErrAttr, depth, MaxCQE)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed("device")
	}
	c := &CQ{dev: d, depth: depth, wake: make(chan struct{}, 1), done: make(chan struct{})}
	d.cqs[c] = struct{}{}
	return c, nil
}

// push adds a completion. It reports whether a goroutine was waiting, and whether there was room:
// on overrun the queue is broken and accepts nothing more, and push returns false the first time.
func (c *CQ) push(wc *qp.WC) (woken, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed || c.overrun != notOverrun:
		return false, true
	case c.n == c.depth:
		c.overrun = overrunNew
		return c.signal(), false
	case c.n == len(c.ring):
		grown := make([]qp.WC, min(c.depth, max(firstCQEs, 2*c.n)))
		copy(grown[copy(grown, c.ring[c.head:]):], c.ring[:c.head])
		c.ring, c.head = grown, 0
	}
	at := c.head + c.n
	if at >= len(c.ring) {
		at -= len(c.ring)
	}
	c.ring[at] = *wc
	c.n++
	return c.signal(), true
}

// signal wakes one waiter, if there is one.
func (c *CQ) signal() bool {
	if c.waiters == 0 {
		return false
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return true
}

// Poll implements qp.CQ.
func (c *CQ) Poll(wc []qp.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, errClosed("completion queue")
	}
	n := min(len(wc), c.n)
	k := copy(wc[:n], c.ring[c.head:])
	copy(wc[k:n], c.ring)
	if c.head += n; c.head >= len(c.ring) {
		c.head -= len(c.ring)
	}
	c.n -= n
	if n == 0 && c.overrun == overrunNew {
		c.overrun = overrunTold
		return 0, c.overrunErr()
	}
	return n, nil
}

func (c *CQ) overrunErr() error {
	return fmt.Errorf("softroce: %w: more than %d completions; poll more often or make the queue deeper",
		qp.ErrOverrun, c.depth)
}

// Wait implements qp.CQ. On a queue that has overrun it succeeds until the remaining completions
// have been polled, and then fails with qp.ErrOverrun.
func (c *CQ) Wait(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return errClosed("completion queue")
		case c.n > 0 || c.overrun == overrunNew:
			c.signal() // there may be enough for the next waiter
			return nil
		case c.overrun == overrunTold:
			c.signal() // nothing else would wake the next waiter
			return c.overrunErr()
		}
		c.waiters++
		c.mu.Unlock()
		var err error
		select {
		case <-c.wake:
		case <-c.done:
		case <-ctx.Done():
			err = ctx.Err()
		}
		c.mu.Lock()
		c.waiters--
		if err != nil {
			if c.n > 0 {
				c.signal() // this waiter may have taken the token of another
			}
			return err
		}
	}
}

// Close implements qp.CQ.
func (c *CQ) Close() error {
	d := c.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.cqs[c]; !ok {
		return errClosed("completion queue")
	}
	if c.users > 0 {
		return fmt.Errorf("softroce: %w: completion queue used by queue pairs; close those first", qp.ErrBusy)
	}
	delete(d.cqs, c)
	c.destroy()
	return nil
}

func (c *CQ) destroy() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		close(c.done)
	}
}
