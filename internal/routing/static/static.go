// Package static computes routes from a topology file, for fabrics without a routing protocol.
// [Open] returns one switch's view of the fabric as a routing.Source, with any set of links down.
// The package reads no clock and starts no goroutine.
package static

import (
	"fmt"
	"net/netip"
	"strconv"
	"sync"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// Routes returns a switch's routes: to every prefix of other switches, and to the address of every
// host and other switch, unless the prefix that contains it has the same next hops. Unreachable
// destinations have an empty set.
func Routes(t *topology.Topology, sw string, down topology.Down) ([]routing.Route, error) {
	n, err := t.Switch(sw)
	if err != nil {
		return nil, err
	}
	var table routing.Table
	set := func(p netip.Prefix, hops routing.Hops) {
		if r, ok := table.Lookup(p.Addr()); !ok || !r.Hops.Equal(hops) {
			table.Apply(routing.Delta{Routes: []routing.Route{{Prefix: p, Hops: hops}}})
		}
	}
	sets := make(map[*topology.Node]routing.Hops)
	for _, dst := range t.Nodes() {
		var hops []routing.NextHop
		for _, h := range t.HopsTo(n, dst, down) {
			hops = append(hops, h.NextHop)
		}
		sets[dst] = routing.NewHops(hops...)
		if dst != n && dst.Switch != nil {
			for _, p := range dst.Switch.Prefixes {
				set(p, sets[dst])
			}
		}
	}
	for _, dst := range t.Nodes() {
		if dst != n && dst.Address.IsValid() {
			set(netip.PrefixFrom(dst.Address, dst.Address.BitLen()), sets[dst])
		}
	}
	return table.Routes(), nil
}

// Neighbors returns a switch's neighbors over links that are up, if their MAC addresses are in the
// file.
func Neighbors(t *topology.Topology, sw string, down topology.Down) ([]routing.Neighbor, error) {
	n, err := t.Switch(sw)
	if err != nil {
		return nil, err
	}
	var list []routing.Neighbor
	for _, p := range n.Ports {
		if !down[p.Link] && p.Far.MAC != (routing.MAC{}) {
			list = append(list, routing.Neighbor{
				NeighborKey: routing.NeighborKey{Addr: p.Far.Address, Port: strconv.Itoa(int(p.Near.Port))}, MAC: p.Far.MAC})
		}
	}
	return list, nil
}

// A Source is one switch's view of a topology, as a [routing.Source].
type Source struct {
	routing.Table
	t  *topology.Topology
	sw string

	mu   sync.Mutex
	down topology.Down
}

// Open returns the view of a switch, with all links up.
func Open(t *topology.Topology, sw string) (*Source, error) {
	s := &Source{t: t, sw: sw, down: topology.Down{}}
	return s, s.update()
}

// SetLink sets whether a link, anywhere in the fabric, is up.
func (s *Source) SetLink(id int, up bool) error {
	if id < 0 || id >= len(s.t.Links) {
		return fmt.Errorf("%w: link %d", topology.ErrUnknown, id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down[id] == !up {
		return nil
	}
	s.down[id] = !up
	return s.update()
}

func (s *Source) update() error {
	routes, err := Routes(s.t, s.sw, s.down)
	if err != nil {
		return err
	}
	neighbors, err := Neighbors(s.t, s.sw, s.down)
	if err != nil {
		return err
	}
	s.Replace(routes, neighbors)
	return nil
}
