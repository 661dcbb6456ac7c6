package mcrdma

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// goodbye limits the time for telling the daemon that something is closed.
const goodbye = 2 * time.Second

// Close ends the session and everything that belongs to it: it closes groups and listeners, leaves
// groups as a member, and deregisters memory. Operations in flight fail with ErrClosed; to complete
// them, close their groups first. Close may be called again.
func (c *Client) Close() error { return c.closing() }

func (c *Client) close() error {
	c.mu.Lock()
	if !c.isClosed() {
		close(c.closed)
	}
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

// ended is a canceled context.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
