package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/internal/topology"
)

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

// complete waits until a switch has the ways to each rack that the topology has.
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
	// While routes are being learned, some lead a long way around; groups that are made then have more copies than they need.
	ports := map[uint16]uint16{} // by next hop
	for h := range switchspec.Of[switchspec.NextHop](s) {
		ports[h.ID] = h.Port
	}
	sets := map[uint16][]switchspec.ECMPHop{}
	for g := range switchspec.Of[switchspec.ECMPGroup](s) {
		sets[g.ID] = g.Hops
	}
	have := map[netip.Prefix]map[string]bool{} // the neighbors to which packets go
	for r := range switchspec.Of[switchspec.Route](s) {
		hops := sets[r.Number]
		if r.To == switchspec.ToNextHop {
			hops = []switchspec.ECMPHop{{NextHop: r.Number}}
		}
		have[r.Dst] = map[string]bool{}
		for _, h := range hops {
			if at, err := l.plan.At(n.Name, uint32(ports[h.NextHop])); err == nil {
				have[r.Dst][at.To.Name] = true
			}
		}
	}
	for _, far := range l.plan.switches() {
		want := map[string]bool{}
		for _, h := range l.plan.HopsTo(n, far, nil) {
			want[h.Node] = true
		}
		for _, p := range far.Switch.Prefixes {
			if far != n && !maps.Equal(have[p], want) {
				return fmt.Errorf("switch %s has ways to %v, the rack of %s, by %v, and not by %v", n.Name, p, far.Name,
					slices.Sorted(maps.Keys(have[p])), slices.Sorted(maps.Keys(want)))
			}
		}
	}
	return nil
}

// Draw draws a group's tree, as "switchctl group show" does: an administrator asks the agents.
func (l *Lab) Draw(ctx context.Context, w io.Writer, key grouptree.Key) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	creds, err := l.admin.Client(identity.Identity{Role: identity.Switch})
	if err != nil {
		return err
	}
	var all []string
	agents := map[string]grouptree.Agent{}
	for _, s := range l.plan.Switches {
		at := l.Agent(s.Name)
		c, err := grpc.NewClient(at, grpc.WithTransportCredentials(creds)) // connects when it is asked
		if err != nil {
			return err
		}
		defer c.Close()
		all, agents[at] = append(all, at), grouptree.Agent{Status: mcrdmav1.NewSwitchStatusClient(c), Groups: mcrdmav1.NewSwitchGroupsClient(c)}
	}
	t, err := grouptree.Collect(ctx, func(at string) (grouptree.Agent, error) {
		a, ok := agents[at]
		if !ok {
			return a, fmt.Errorf("the lab has no agent at %s", at)
		}
		return a, nil
	}, key, all, nil, grouptree.Limits{})
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
