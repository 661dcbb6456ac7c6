package schedule

import "fmt"

// Racks says which nodes of a group are close to each other, for the hybrid
// algorithm and for Choose. The lowest-numbered node of a rack is its leader, so
// the root leads its rack. Racks are made once for a group, by NewRacks or
// RacksOf, are never changed, and take 12 bytes for each node.
type Racks struct {
	rank  []int32 // of each node in its rack; the leader's is 0
	rack  []int32 // of each node, in order of the leaders
	first []int32 // the index in nodes where each rack begins, and the end
	nodes []int32 // rack after rack, in ascending order within each
}

// NewRacks returns racks of the given sizes: the first rack holds nodes 0 to
// sizes[0]-1, and so on. The error wraps ErrRacks or ErrNodes.
func NewRacks(sizes ...int) (*Racks, error) {
	var rack []int
	for i, size := range sizes {
		if size < 1 {
			return nil, fmt.Errorf("%w: rack %d has %d nodes; leave empty ones out", ErrRacks, i, size)
		}
		if size > MaxNodes-len(rack) {
			return nil, fmt.Errorf("%w: the racks together have more than %d", ErrNodes, MaxNodes)
		}
		for range size {
			rack = append(rack, i)
		}
	}
	return RacksOf(rack)
}

// RacksOf returns the racks in which node i is in rack[i]. Racks may have any
// numbers. The error wraps ErrNodes.
func RacksOf(rack []int) (*Racks, error) {
	if len(rack) < 2 || len(rack) > MaxNodes {
		return nil, fmt.Errorf("%w: %d in the racks; a group has 2 to %d", ErrNodes, len(rack), MaxNodes)
	}
	r := &Racks{
		rank:  make([]int32, len(rack)),
		rack:  make([]int32, len(rack)),
		nodes: make([]int32, len(rack)),
	}
	index := map[int]int32{}
	var sizes []int32
	for i, name := range rack {
		x, ok := index[name]
		if !ok {
			x = int32(len(sizes))
			index[name] = x
			sizes = append(sizes, 0)
		}
		r.rack[i], r.rank[i] = x, sizes[x]
		sizes[x]++
	}
	r.first = make([]int32, len(sizes)+1)
	for x, size := range sizes {
		r.first[x+1] = r.first[x] + size
	}
	for i, x := range r.rack {
		r.nodes[r.first[x]+r.rank[i]] = int32(i)
	}
	return r, nil
}

// Nodes returns the number of nodes in all racks.
func (r *Racks) Nodes() int { return len(r.nodes) }

// Len returns the number of racks.
func (r *Racks) Len() int { return len(r.first) - 1 }

// Rack returns the index of node i's rack. Racks are numbered from 0 in the
// order of their leaders, so the root's is rack 0. It panics if there is no such
// node.
func (r *Racks) Rack(i int) int { return int(r.rack[i]) }

// Size returns the number of nodes in rack x. It panics if there is no such
// rack.
func (r *Racks) Size(x int) int { return int(r.first[x+1] - r.first[x]) }

// Leader returns the leader of rack x. It panics if there is no such rack.
func (r *Racks) Leader(x int) int { return int(r.nodes[r.first[x]]) }

// largest returns the size of the largest rack.
func (r *Racks) largest() int {
	n := 0
	for x := range r.Len() {
		n = max(n, r.Size(x))
	}
	return n
}

// A clock maps the steps of the two levels to those of the hybrid schedule. A
// leader sends on both levels, so their steps alternate: step t of the pipeline
// among leaders is step 2t of the schedule, and step t of those in racks is step
// 2(t+lag)+1, by when each leader holds block t. When the leaders are done, the
// steps in racks follow without gaps. So a leader's two sends of a turn take
// different wires, if the one that leaves the rack is slower.
type clock struct {
	leaders int64 // number of steps among leaders
	racks   int64 // number of steps in the largest rack
	lag     int64 // how many steps racks are behind leaders
	mixed   int64 // how many steps in racks come between those of leaders
	stride  int64 // distance of the steps among leaders
}

func (r *Racks) clock(blocks int64) clock {
	c := clock{
		leaders: pipelineSteps(r.Len(), blocks),
		racks:   pipelineSteps(r.largest(), blocks),
		stride:  1,
	}
	if c.leaders > 0 && c.racks > 0 {
		c.lag, c.mixed, c.stride = int64(log2Up(r.Len())), blocks-1, 2
	}
	return c
}

func (r *Racks) steps(blocks int64) int64 {
	c := r.clock(blocks)
	return c.stride*c.leaders + c.racks - c.mixed
}

// leader returns the step of the schedule for step t among leaders.
func (c *clock) leader(t int64) int64 { return c.stride * t }

// inRack returns the step of the schedule for step t in racks.
func (c *clock) inRack(t int64) int64 {
	if t < c.mixed {
		return 2*(t+c.lag) + 1
	}
	return c.stride*c.leaders + t - c.mixed
}

// leaderBefore returns the last step among leaders that is not after step j of
// the schedule, or -1.
func (c *clock) leaderBefore(j int64) int64 {
	if j < 0 {
		return -1
	}
	return min(j/c.stride, c.leaders-1)
}

// inRackBefore returns the last step in racks that is not after step j of the
// schedule, or -1.
func (c *clock) inRackBefore(j int64) int64 {
	if end := c.stride * c.leaders; j >= end {
		return min(j-end+c.mixed, c.racks-1)
	}
	return min(max((j+1)/2-1-c.lag, -1), c.mixed-1)
}

// A place is a node's part of a hybrid schedule.
type place struct {
	racks  *Racks
	rack   int
	clock  clock
	leader vertex // among leaders, if it is one
	inRack vertex
}

func (r *Racks) place(i int, blocks int64) place {
	x := r.Rack(i)
	p := place{racks: r, rack: x, clock: r.clock(blocks)}
	if r.rank[i] == 0 {
		p.leader = newVertex(r.Len(), x, blocks)
	}
	p.inRack = newVertex(r.Size(x), int(r.rank[i]), blocks)
	return p
}

// fromLeaders makes a transfer of the pipeline among leaders one of the schedule.
func (p *place) fromLeaders(t Transfer, ok bool) (Transfer, bool) {
	if !ok {
		return Transfer{}, false
	}
	return Transfer{Step: p.clock.leader(t.Step), Block: t.Block, Peer: p.racks.Leader(t.Peer)}, true
}

// fromRack makes a transfer of the rack's pipeline one of the schedule.
func (p *place) fromRack(t Transfer, ok bool) (Transfer, bool) {
	if !ok {
		return Transfer{}, false
	}
	peer := p.racks.nodes[int(p.racks.first[p.rack])+t.Peer]
	return Transfer{Step: p.clock.inRack(t.Step), Block: t.Block, Peer: int(peer)}, true
}

// do returns what the node sends or receives in step j.
func (p *place) do(w way, j int64) (Transfer, bool) {
	if t := p.clock.leaderBefore(j); t >= 0 && p.clock.leader(t) == j {
		return p.fromLeaders(p.leader.do(w, t))
	}
	if t := p.clock.inRackBefore(j); t >= 0 && p.clock.inRack(t) == j {
		return p.fromRack(p.inRack.do(w, t))
	}
	return Transfer{}, false
}

// next returns the first send or receive after a step.
func (p *place) next(w way, after int64) (Transfer, bool) {
	a, ok := p.fromLeaders(p.leader.next(w, p.clock.leaderBefore(after)))
	b, also := p.fromRack(p.inRack.next(w, p.clock.inRackBefore(after)))
	if ok && (!also || a.Step < b.Step) {
		return a, true
	}
	return b, also
}

// peers appends all nodes that the node exchanges blocks with.
func (p *place) peers(to []int) []int {
	leaders := p.leader.peers(nil)
	for _, x := range leaders {
		to = append(to, p.racks.Leader(x))
	}
	for _, rank := range p.inRack.peers(nil) {
		to = append(to, int(p.racks.nodes[int(p.racks.first[p.rack])+rank]))
	}
	return to
}
