package pipeline

import (
	"fmt"
	"math"
)

// ports are the states of ports, which determine the selectable members.
type ports struct {
	down    [(math.MaxUint16 + 1) / 64]uint64 // one bit per port
	changes uint64                            // number of state changes
}

func (p *ports) isDown(port int) bool {
	return port >= 0 && p.down[port/64]>>(port%64)&1 != 0
}

// SetPortUp sets whether a port is up; initially all are. Members of groups and of one-shot sets
// that watch a port which is down are not selected (P4Runtime, "watch_port"). If none is left, no
// action runs, as with an empty group.
func (s *state) SetPortUp(port uint16, up bool) {
	if s.ports.isDown(int(port)) != up {
		return
	}
	s.ports.down[port/64] ^= 1 << (port % 64)
	s.ports.changes++
}

// choice is a weighted choice among actions.
type choice struct {
	acts  []*bound // selectable actions
	ends  []uint64 // running sums of their weights
	total uint64

	all     []candidate
	weights uint64 // total weight of all actions
	ports   *ports // nil: no action watches a port
	changes uint64 // value of ports.changes at the last look
}

type candidate struct {
	act    *bound
	weight uint64
	watch  int
}

func (p *Profile) newChoice(ws []Weighted, acts []*bound) (*choice, error) {
	c := &choice{acts: make([]*bound, 0, len(ws)), ends: make([]uint64, 0, len(ws)), all: make([]candidate, len(ws))}
	for i, w := range ws {
		switch {
		case w.Weight < 1 || w.Weight > math.MaxInt32:
			return nil, fmt.Errorf("%w: weight %d: give 1 to %d", ErrInvalid, w.Weight, math.MaxInt32)
		case w.WatchPort > math.MaxUint16:
			return nil, fmt.Errorf("%w: port %d to watch: there are ports 0 to %d", ErrInvalid, w.WatchPort, math.MaxUint16)
		case w.WatchPort >= 0:
			c.ports = &p.s.ports
		}
		c.all[i] = candidate{acts[i], uint64(w.Weight), w.WatchPort}
		c.weights += uint64(w.Weight)
	}
	c.look(&p.s.ports)
	return c, nil
}

// look updates the selectable actions.
func (c *choice) look(p *ports) {
	c.acts, c.ends, c.total, c.changes = c.acts[:0], c.ends[:0], 0, p.changes
	for _, x := range c.all {
		if p.isDown(x.watch) {
			continue
		}
		c.total += x.weight
		c.acts, c.ends = append(c.acts, x.act), append(c.ends, c.total)
	}
}

// pick selects by the remainder of the hash; nil if nothing is selectable.
func (c *choice) pick(hash uint64) *bound {
	if c.ports != nil && c.changes != c.ports.changes {
		c.look(c.ports)
	}
	if c.total == 0 {
		return nil
	}
	hash %= c.total
	if c.total == uint64(len(c.acts)) { // all weights are 1
		return c.acts[hash]
	}
	lo, hi := 0, len(c.ends)
	for lo < hi {
		if mid := (lo + hi) / 2; c.ends[mid] <= hash {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return c.acts[lo]
}
