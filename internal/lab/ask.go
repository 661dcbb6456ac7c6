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
	for i := range switches {
		n := &switches[i]
		c, err := l.conn(l.Agent(n.name))
		if err != nil {
			return err
		}
		status := mcrdmav1.NewSwitchStatusClient(c)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			err := complete(ctx, n, status)
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
func complete(ctx context.Context, n *node, status mcrdmav1.SwitchStatusClient) error {
	routes, err := status.ListRoutes(ctx, &mcrdmav1.ListRoutesRequest{})
	if err != nil {
		return fmt.Errorf("agent of %s: %w", n.name, err)
	}
	have := map[string]bool{}
	for _, r := range routes.GetRoutes() {
		have[r.GetPrefix()] = len(r.GetHops()) > 0
	}
	for i := range switches {
		if far := &switches[i]; far.prefix.IsValid() && far != n && !have[far.prefix.String()] {
			return fmt.Errorf("switch %s has no way to %v, the rack of %s", n.name, far.prefix, far.name)
		}
	}
	return nil
}

// Draw draws a group's tree, as "switchctl group show" does: the agents are asked.
func (l *Lab) Draw(ctx context.Context, w io.Writer, key grouptree.Key) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	var first []string
	for i := range switches {
		first = append(first, l.Agent(switches[i].name))
	}
	t, err := grouptree.Collect(ctx, source{l}, key, first, nil, grouptree.Limits{})
	if err != nil {
		return err
	}
	names := map[string]string{}
	for _, h := range hosts {
		names[h.addr.String()] = h.name
	}
	if t.Group != nil {
		t.Group.Members, t.Group.Expires = nil, nil // the tree alone
	}
	return t.Text(w, grouptree.TextOptions{Names: names})
}

// A source asks agents for package grouptree.
type source struct{ l *Lab }

func (s source) Status(ctx context.Context, agent string) (*mcrdmav1.GetStatusResponse, error) {
	c, err := s.l.conn(agent)
	if err != nil {
		return nil, err
	}
	return mcrdmav1.NewSwitchStatusClient(c).GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
}

func (s source) Steps(ctx context.Context, agent string, group *mcrdmav1.GroupKey) (*mcrdmav1.ListStepsResponse, error) {
	c, err := s.l.conn(agent)
	if err != nil {
		return nil, err
	}
	return mcrdmav1.NewSwitchStatusClient(c).ListSteps(ctx, &mcrdmav1.ListStepsRequest{Group: group})
}

func (s source) Group(ctx context.Context, agent string, group *mcrdmav1.GroupKey) (*mcrdmav1.GroupStatus, error) {
	c, err := s.l.conn(agent)
	if err != nil {
		return nil, err
	}
	r, err := mcrdmav1.NewSwitchGroupsClient(c).Get(ctx, &mcrdmav1.GetRequest{Key: group, Counters: true})
	return r.GetGroup(), err
}
