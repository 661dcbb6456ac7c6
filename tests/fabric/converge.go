package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// Ready waits until all agents that run have their switches as they want them.
func (f *Fabric) Ready() {
	f.t.Helper()
	for _, n := range f.order {
		if n.agent == nil {
			continue
		}
		err := within(func(ctx context.Context) error {
			err := n.agent.Wait(ctx)
			if ctx.Err() != nil {
				err = fmt.Errorf("%w: %s", err, f.describe(n))
			}
			return err
		})
		f.must(err)
	}
}

// describe says what is wrong with an agent.
func (f *Fabric) describe(n *node) string {
	var out *mcrdmav1.GetStatusResponse
	err := within(func(ctx context.Context) (err error) {
		out, err = f.Status(n.Name).GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
		return err
	})
	if err != nil {
		return err.Error()
	}
	return out.String()
}

// Converged waits until each switch whose agent runs has exactly the shortest
// paths to all others' prefixes over the wires that are not cut, and knows its
// hosts. It reads the switches: what agents know may still be on its way there, and
// a switch that takes part in no group is not written before a group is installed.
// With static routes, which ignore wires elsewhere, no wire may be cut.
func (f *Fabric) Converged() {
	f.t.Helper()
	f.eventually("converging", f.converged)
}

func (f *Fabric) converged() error {
	var wg sync.WaitGroup
	errs := make([]error, len(f.order))
	for i, n := range f.order {
		if n.agent != nil && n.embedded != nil {
			wg.Go(func() { errs[i] = n.checkRoutes() })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// routes are the ports that a switch sends packets to, by prefix.
func (n *node) routes() (map[netip.Prefix][]uint16, error) {
	s, err := n.state()
	if err != nil {
		return nil, err
	}
	port, paths := map[uint16]uint16{}, map[uint16][]uint16{}
	for h := range switchspec.Of[switchspec.NextHop](s) {
		port[h.ID] = h.Port
	}
	for g := range switchspec.Of[switchspec.ECMPGroup](s) {
		for _, h := range g.Hops {
			paths[g.ID] = append(paths[g.ID], port[h.NextHop])
		}
		slices.Sort(paths[g.ID])
	}
	routes := map[netip.Prefix][]uint16{}
	for r := range switchspec.Of[switchspec.Route](s) {
		switch r.To {
		case switchspec.ToNextHop:
			routes[r.Dst] = []uint16{port[r.Number]}
		case switchspec.ToECMP:
			routes[r.Dst] = paths[r.Number]
		}
	}
	return routes, nil
}

// checkRoutes compares a switch's routes with what they should be.
func (n *node) checkRoutes() error {
	ports, err := n.routes()
	if err != nil {
		return err
	}
	for _, o := range n.f.order {
		if !o.Prefix.IsValid() || o == n {
			continue
		}
		if want, have := n.ways(o), ports[o.Prefix]; !slices.Equal(want, have) {
			return fmt.Errorf("switch %s reaches %v (%s) by ports %v, want %v", n.Name, o.Prefix, o.Name, have, want)
		}
	}
	for _, h := range n.hosts {
		if have := ports[netip.PrefixFrom(h.Addr, 32)]; !slices.Equal(have, []uint16{h.port}) {
			return fmt.Errorf("switch %s reaches its host %s (%v) by ports %v, want %d", n.Name, h.Name, h.Addr, have, h.port)
		}
	}
	return nil
}

// ways are the ports on shortest ways to another switch, over wires that work
// between switches that do.
func (n *node) ways(to *node) []uint16 {
	dist := n.f.distances(to)
	d, ok := dist[n]
	if !ok {
		return nil
	}
	var list []uint16
	for _, w := range n.links {
		if far, ok := dist[n.neighbor(w)]; ok && w.up() && far == d-1 {
			list = append(list, n.port(w))
		}
	}
	slices.Sort(list)
	return list
}

// distances counts the wires on shortest ways to a switch.
func (f *Fabric) distances(to *node) map[*node]int {
	works := func(n *node) bool { return n.agent != nil && n.embedded != nil }
	dist := map[*node]int{}
	if works(to) {
		dist[to] = 0
	}
	for queue := []*node{to}; len(queue) > 0; queue = queue[1:] {
		n := queue[0]
		for _, w := range n.links {
			o := n.neighbor(w)
			if _, seen := dist[o]; !seen && w.up() && works(o) && works(n) {
				dist[o] = dist[n] + 1
				queue = append(queue, o)
			}
		}
	}
	return dist
}

// Links waits until all agents that run see their links as they are: up, or down
// where a wire is cut, or where the other end does not run.
func (f *Fabric) Links() {
	f.t.Helper()
	f.eventually("links", func() error {
		for _, n := range f.order {
			if err := f.checkLinks(n); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *Fabric) checkLinks(n *node) error {
	if n.agent == nil || n.embedded == nil {
		return nil
	}
	return within(func(ctx context.Context) error {
		s, err := f.Status(n.Name).GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
		if err != nil {
			return err
		}
		state := map[uint16]string{}
		for _, p := range s.Ports {
			state[uint16(p.Port)] = p.State
		}
		for _, w := range n.links {
			o := n.neighbor(w)
			up := w.up() && o.agent != nil && o.embedded != nil
			if got := state[n.port(w)]; strings.EqualFold(got, "up") != up {
				return fmt.Errorf("switch %s says that %v is %s", n.Name, w, got)
			}
		}
		return nil
	})
}

// since is when the agent at one end of a wire last changed its mind about it.
func (f *Fabric) since(e End) (at time.Time) {
	f.t.Helper()
	f.must(within(func(ctx context.Context) error {
		s, err := f.Status(e.Node).GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
		for _, p := range s.GetPorts() {
			if uint16(p.Port) == e.Port {
				at = p.Since.AsTime()
			}
		}
		return err
	}))
	return at
}

// Flapped lists wires other than one whose ends took them for down or up since some
// time. If the test did not cut them, the machine was too busy for hellos, and
// losses meanwhile mean nothing.
func (f *Fabric) Flapped(since time.Time, except *Wire) (list []*Wire) {
	f.t.Helper()
	for _, n := range f.order {
		if n.agent == nil {
			continue
		}
		var s *mcrdmav1.GetStatusResponse
		f.must(within(func(ctx context.Context) (err error) {
			s, err = f.Status(n.Name).GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
			return err
		}))
		for _, p := range s.Ports {
			for _, w := range n.links {
				if w != except && uint32(n.port(w)) == p.Port && p.Since.AsTime().After(since) {
					list = append(list, w)
				}
			}
		}
	}
	return list
}
