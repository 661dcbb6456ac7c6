package simnet

import (
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/internal/topology"
)

// Offered is what each of the Links would have to carry on average, in bits a second, if hosts sent each other what demands adds, over
// equal paths evenly. The error says that there is no path, and wraps topology.ErrUnknown.
func (s *Sim) Offered(demands func(add func(from, to int, bits float64))) ([]float64, error) {
	from := make([]map[int]float64, len(s.nodes)) // by destination
	demands(func(a, b int, bits float64) {
		if a == b || bits == 0 {
			return
		}
		if from[b] == nil {
			from[b] = map[int]float64{}
		}
		from[b][a] += bits
	})
	links := make([]float64, len(s.ports))
	at := make([]float64, len(s.nodes))
	far := make([]int, len(s.nodes))
	var order []int // nodes by their distance, the farthest first
	for dst, sources := range from {
		if sources == nil {
			continue
		}
		clear(at)
		clear(far)
		order = order[:0]
		for i := range s.nodes {
			if s.distance(i, dst, far) > 0 {
				order = append(order, i)
			}
		}
		slices.SortStableFunc(order, func(a, b int) int { return far[b] - far[a] })
		for i := range s.nodes {
			if at[i] = sources[i]; at[i] > 0 && far[i] < 0 {
				return nil, fmt.Errorf("%w: there is no path from %s to %s", topology.ErrUnknown, s.nodes[i].Name, s.nodes[dst].Name)
			}
		}
		for _, i := range order {
			out := s.ways(i, dst)
			for _, p := range out {
				share := at[i] / float64(len(out))
				links[p] += share
				at[s.ports[s.ports[p].peer].node] += share
			}
		}
	}
	return links, nil
}

// ways are the ports of a node to a host.
func (s *Sim) ways(i, dst int) []int32 {
	if n := &s.nodes[i]; n.Switch != nil {
		return n.routes[dst]
	}
	return s.nodes[i].ports
}

// distance is how many links lead from a node to a host, by the switches' routes; -1: there is no path. far has those that are
// known, and 0 for others.
func (s *Sim) distance(i, dst int, far []int) int {
	if i == dst || far[i] != 0 {
		return far[i]
	}
	far[i] = -1
	if out := s.ways(i, dst); len(out) > 0 {
		if next := int(s.ports[s.ports[out[0]].peer].node); next == dst || s.nodes[next].Switch != nil {
			if d := s.distance(next, dst, far); d >= 0 {
				far[i] = d + 1
			}
		}
	}
	return far[i]
}

// Reaches reports whether there is a path from a host to another.
func (s *Sim) Reaches(from, to int) bool { return s.distance(from, to, make([]int, len(s.nodes))) > 0 }
