package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/switchspec"
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

// converged waits until each switch has a way to each rack. It reads the switches: what their
// agents know may still be on its way there.
func (l *Lab) converged(ctx context.Context) error {
	for _, n := range l.plan.switches() {
		c, err := l.reader(n)
		if err != nil {
			return err
		}
		err = l.complete(ctx, n, c)
		if err = errors.Join(err, c.Close()); err != nil {
			return err
		}
	}
	return nil
}

// reader reads a switch.
func (l *Lab) reader(n *topology.Node) (*p4rt.Client, error) {
	return p4rt.New(p4rt.Config{Target: l.plan.at(n, p4runtimePort).String(), DeviceID: uint64(l.plan.number(n))})
}

// complete waits until a switch has a way to each rack.
func (l *Lab) complete(ctx context.Context, n *topology.Node, c *p4rt.Client) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := l.lacks(ctx, n, c)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// lacks says what a switch still lacks.
func (l *Lab) lacks(ctx context.Context, n *topology.Node, c *p4rt.Client) error {
	s, err := c.Read(ctx)
	if err != nil {
		return fmt.Errorf("reading %s: %w", n.Name, err)
	}
	have := map[netip.Prefix]bool{}
	for r := range switchspec.Of[switchspec.Route](s) {
		have[r.Dst] = r.To == switchspec.ToNextHop || r.To == switchspec.ToECMP
	}
	for _, far := range l.plan.switches() {
		for _, p := range far.Switch.Prefixes {
			if far != n && !have[p] {
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
