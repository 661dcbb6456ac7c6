package schedule

import "slices"

// ID returns the node's number.
func (n *Node) ID() int { return n.id }

// Schedule returns the schedule that this is a part of.
func (n *Node) Schedule() Schedule { return n.schedule }

// Send returns what the node sends in step j, and false if it sends nothing
// then, as in all steps that the schedule doesn't have. Constant time.
func (n *Node) Send(j int64) (Transfer, bool) { return n.do(out, j) }

// Recv returns what the node receives in step j, and false if it receives
// nothing then. Constant time.
func (n *Node) Recv(j int64) (Transfer, bool) { return n.do(in, j) }

func (n *Node) do(w way, j int64) (Transfer, bool) {
	switch n.schedule.algorithm {
	case BinomialPipeline:
		return n.pipe.do(w, j)
	case Hybrid:
		return n.hybrid.do(w, j)
	default:
		from, to := n.schedule.steps(w, n.id)
		if j < from || j >= to {
			return Transfer{}, false
		}
		return n.schedule.transfer(w, n.id, j), true
	}
}

// Peers returns, in ascending order, all nodes to which the node sends or from which it receives in
// some message of the group, for any number of blocks. These are the connections that it needs:
// with the pipelines O(log n).
func (n *Node) Peers() []int {
	var p []int
	switch n.schedule.algorithm {
	case BinomialPipeline:
		p = n.pipe.peers(p)
	case Hybrid:
		p = n.hybrid.peers(p)
	default:
		p = n.schedule.peers(n.id)
	}
	slices.Sort(p)
	return slices.Compact(p)
}

// peers returns all nodes that node i exchanges blocks with.
func (s Schedule) peers(i int) []int {
	var p []int
	if i > 0 {
		from, _ := s.steps(in, i)
		p = append(p, s.transfer(in, i, from).Peer)
	}
	from, to := s.steps(out, i)
	for j := from; j < to; j += s.blocks {
		p = append(p, s.transfer(out, i, j).Peer)
	}
	return p
}

// peers appends all nodes that the node exchanges blocks with.
func (p *vertex) peers(to []int) []int {
	if p.l > 0 && p.mate >= 0 {
		to = append(to, p.mate)
	}
	for d := range p.l {
		w := p.v ^ 1<<d
		to = append(to, w)
		if i := p.other(w); i >= 0 {
			to = append(to, i)
		}
	}
	return to
}

// peers appends all nodes that the node exchanges blocks with.
func (p *hybridNode) peers(to []int) []int {
	for _, x := range p.leader.peers(nil) {
		to = append(to, p.racks.Leader(x))
	}
	for _, rank := range p.inRack.peers(nil) {
		to = append(to, p.racks.node(p.rack, rank))
	}
	return to
}

// do returns what the node sends or receives in step j.
func (p *hybridNode) do(w way, j int64) (Transfer, bool) {
	if j < p.before {
		return p.among(p.leader.do(w, j))
	}
	return p.within(p.inRack.do(w, j-p.before))
}
