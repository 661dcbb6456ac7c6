package schedule

import "fmt"

// Racks says which nodes of a group are close to each other, for the hybrid algorithm and for
// Choose. The lowest-numbered node of a rack is its leader, so the root leads its rack. Create
// Racks once per group, with RacksOf. They never change, and take 12 bytes per node.
type Racks struct {
	rank  []int32 // of each node in its rack; the leader's is 0
	rack  []int32 // of each node, in order of the leaders
	first []int32 // index in nodes at which each rack starts, and the end
	nodes []int32 // rack by rack, in ascending order within each
	most  int     // number of nodes in the largest rack
}

// RacksOf returns the racks in which node i is in rack[i]. The numbers of racks are arbitrary. The
// error wraps ErrNodes.
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
		r.most = max(r.most, int(size))
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
func (r *Racks) Leader(x int) int { return r.node(x, 0) }

// node returns the node of a rank in rack x.
func (r *Racks) node(x, rank int) int { return int(r.nodes[int(r.first[x])+rank]) }

func (r *Racks) steps(blocks int64) int64 {
	return pipelineSteps(r.Len(), blocks) + pipelineSteps(r.most, blocks)
}

// A hybridNode is a node's part of a hybrid schedule. All steps among leaders precede those in
// racks, but no node waits for that: a leader that has finished its sends to other leaders
// continues in its rack. It must send nearly all blocks on both levels, so another order would gain
// nothing while it sends one block at a time.
type hybridNode struct {
	racks  *Racks
	rack   int
	before int64  // number of steps among leaders
	leader vertex // among leaders, if it is one
	inRack vertex
}

func (r *Racks) hybridNode(i int, blocks int64) hybridNode {
	x := r.Rack(i)
	p := hybridNode{racks: r, rack: x, before: pipelineSteps(r.Len(), blocks)}
	if r.rank[i] == 0 {
		p.leader = newVertex(r.Len(), x, blocks)
	}
	p.inRack = newVertex(r.Size(x), int(r.rank[i]), blocks)
	return p
}

// among converts a transfer of the leaders' pipeline to one of the schedule.
func (p *hybridNode) among(t Transfer, ok bool) (Transfer, bool) {
	if !ok {
		return Transfer{}, false
	}
	t.Peer = p.racks.Leader(t.Peer)
	return t, true
}

// within converts a transfer of the rack's pipeline to one of the schedule.
func (p *hybridNode) within(t Transfer, ok bool) (Transfer, bool) {
	if !ok {
		return Transfer{}, false
	}
	t.Step += p.before
	t.Peer = p.racks.node(p.rack, t.Peer)
	return t, true
}

// next returns the first send or receive after a step.
func (p *hybridNode) next(w way, after int64) (Transfer, bool) {
	if t, ok := p.among(p.leader.next(w, after)); ok {
		return t, true
	}
	return p.within(p.inRack.next(w, max(after, -1)-p.before))
}
