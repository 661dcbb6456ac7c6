package lab

import (
	"context"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// conn is a connection with an agent, as an administrator.
func (l *Lab) conn(agent string) (*grpc.ClientConn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.conns[agent]; c != nil {
		return c, nil
	}
	creds, err := l.admin.Client(identity.Identity{Role: identity.Switch})
	if err != nil {
		return nil, err
	}
	c, err := grpc.NewClient(agent, grpc.WithTransportCredentials(creds))
	if err == nil {
		l.conns[agent] = c
	}
	return c, err
}

// converged waits until each switch has a way to each rack, and all links work.
func (l *Lab) converged(ctx context.Context) error {
	for _, n := range l.plan.switches() {
		c, err := l.conn(l.Agent(n.Name))
		if err != nil {
			return err
		}
		status := mcrdmav1.NewSwitchStatusClient(c)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			err := l.complete(ctx, n, status)
			if err == nil {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("%w: %w", context.Cause(ctx), err)
			}
		}
	}
	return nil
}

// complete says what a switch still lacks.
func (l *Lab) complete(ctx context.Context, n *topology.Node, status mcrdmav1.SwitchStatusClient) error {
	routes, err := status.ListRoutes(ctx, &mcrdmav1.ListRoutesRequest{})
	if err != nil {
		return fmt.Errorf("agent of %s: %w", n.Name, err)
	}
	have := map[string]bool{}
	for _, r := range routes.GetRoutes() {
		have[r.GetPrefix()] = len(r.GetHops()) > 0
	}
	for _, far := range l.plan.switches() {
		for _, p := range far.Switch.Prefixes {
			if far != n && !have[p.String()] {
				return fmt.Errorf("switch %s has no way to %v, the rack of %s", n.Name, p, far.Name)
			}
		}
	}
	return nil
}

// Draw draws a group's tree, as "switchctl group show" does: the agents are asked.
func (l *Lab) Draw(ctx context.Context, w io.Writer, key grouptree.Key) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	var first []string
	for _, s := range l.plan.Switches {
		first = append(first, l.Agent(s.Name))
	}
	t, err := grouptree.Collect(ctx, func(agent string) (grouptree.Agent, error) {
		c, err := l.conn(agent)
		return grouptree.Agent{Status: mcrdmav1.NewSwitchStatusClient(c), Groups: mcrdmav1.NewSwitchGroupsClient(c)}, err
	}, key, first, nil, grouptree.Limits{})
	if err != nil {
		return err
	}
	names := map[string]string{}
	for _, h := range l.plan.Hosts {
		names[h.Address.String()] = h.Name
	}
	if t.Group != nil {
		t.Group.Members, t.Group.Expires = nil, nil // the tree alone
	}
	return t.Text(w, grouptree.TextOptions{Names: names})
}
