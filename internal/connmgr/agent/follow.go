package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// Events are what Run calls, one after the other but for Missing.
type Events struct {
	// Owned returns the keys of the groups that the agent should have.
	Owned func() []*mcrdmav1.GroupKey
	// There says which groups of this host the agent has.
	There func(mcIDs []uint32)
	// Changed says what has become of a group, its installation included: its tree may have
	// changed by the time that news arrives.
	Changed func(*mcrdmav1.GroupStatus)
	// Missing says that the agent lacks a group.
	Missing func(mcID uint32)
	// Follows says that the agent's events are followed (nil), or why they no longer are.
	Follows func(error)
	// Ready says why the agent refuses new groups, though it is followed, or that it takes them again ("").
	Ready func(why string)
}

// Run follows the agent's events until ctx ends.
func (c *Client) Run(ctx context.Context, e Events) {
	var renewing sync.WaitGroup
	defer renewing.Wait()
	renewing.Go(func() { c.renew(ctx, e) })
	renewing.Go(func() { again(ctx, func() bool { return c.attend(ctx, e) }) })
	again(ctx, func() bool {
		err := c.follow(ctx, e)
		was := c.follows(false, err)
		if was && ctx.Err() == nil {
			c.Log.Warn("the switch's agent is lost", "switch", c.Name, "error", err)
			e.Follows(err)
		}
		return was
	})
}

// again calls f again and again until ctx ends, less often while f does not work.
func again(ctx context.Context, f func() (worked bool)) {
	wait := followAgain
	for ctx.Err() == nil {
		if f() {
			wait = followAgain
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, 8*followAgain)
	}
}

// attend follows the agent's health until that fails: it says whether the agent is ready. Why it is
// not, the agent's status says.
func (c *Client) attend(ctx context.Context, e Events) (worked bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := c.health.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return false
	}
	for ; ; worked = true {
		res, err := w.Recv()
		if err != nil {
			return worked
		}
		why := ""
		if res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			why = "the agent says that it is not ready"
			if s, err := ask(ctx, c, c.status.GetStatus, &mcrdmav1.GetStatusRequest{}); err == nil && s.GetWaitsFor() != "" {
				why = failure.Clip(s.GetWaitsFor(), failure.MaxText)
			}
		}
		c.mu.Lock()
		was := c.notReady
		c.notReady = why
		c.mu.Unlock()
		if why != was {
			e.Ready(why)
		}
	}
}

// followAgain is the shortest time between two tries to follow the agent.
const followAgain = 250 * time.Millisecond

var errLost = errors.New("the events came faster than they could be followed")

// follow follows events until that fails.
func (c *Client) follow(ctx context.Context, e Events) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	own := c.Source.String()
	events, err := c.groups.Watch(ctx, &mcrdmav1.WatchRequest{Source: own})
	if err != nil {
		return c.explain(ctx, false, err)
	}
	var there []uint32
	for synced := false; ; {
		x, err := events.Recv()
		if err != nil {
			return c.explain(ctx, false, err)
		}
		key := x.GetGroup().GetGroup().GetKey()
		if x.GetGroup() != nil && key.GetSource() != own {
			continue // a group that the request did not ask for
		}
		switch x.GetType() {
		case mcrdmav1.WatchResponse_TYPE_INSTALLED:
			if there = append(there, key.GetMcId()); synced {
				e.There(there)
				there = nil
			}
			e.Changed(x.GetGroup())
		case mcrdmav1.WatchResponse_TYPE_UPDATED:
			e.Changed(x.GetGroup())
		case mcrdmav1.WatchResponse_TYPE_REMOVED, mcrdmav1.WatchResponse_TYPE_EXPIRED:
			c.Look()
		case mcrdmav1.WatchResponse_TYPE_SYNCED:
			synced = true
			e.There(there)
			there = nil
			c.follows(true, nil)
			e.Follows(nil)
			c.Look()
		case mcrdmav1.WatchResponse_TYPE_LOST:
			return errLost
		}
	}
}

// Look has Run see whether the agent has our groups.
func (c *Client) Look() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// renew renews our groups' leases in time and whenever it is kicked, and finds out which of
// them the agent does not have.
func (c *Client) renew(ctx context.Context, e Events) {
	due := time.NewTicker(c.Lease / 3)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.kick:
		case <-due.C:
		}
		if owned := e.Owned(); len(owned) > 0 {
			for _, id := range c.Missing(ctx, owned...) {
				e.Missing(id)
			}
		}
	}
}
