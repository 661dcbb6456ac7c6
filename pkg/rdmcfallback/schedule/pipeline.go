package schedule

import "math/bits"

// A vertex is a node's position in a binomial pipeline; see the package's comment. The zero vertex
// has no transfers.
type vertex struct {
	nodes  int
	l      int   // dimensions of the hypercube
	v      int   // the vertex
	mate   int   // the other node at the vertex; -1 if there is none
	second bool  // this node has the higher number of the two
	last   int64 // number of the last block, k-1
	steps  int64
}

// pipelineSteps returns the number of steps of a pipeline among n nodes, which
// may be one.
func pipelineSteps(n int, blocks int64) int64 {
	if n < 2 {
		return 0
	}
	return int64(log2Up(n)) + blocks - 1
}

// log2Up returns the logarithm of n to base 2, rounded up, for n > 0.
func log2Up(n int) int { return bits.Len(uint(n - 1)) }

// newVertex returns the position of node i among n nodes.
func newVertex(n, i int, blocks int64) vertex {
	if n < 2 {
		return vertex{}
	}
	p := vertex{nodes: n, l: bits.Len(uint(n)) - 1, v: i, mate: -1, last: blocks - 1, steps: pipelineSteps(n, blocks)}
	if size := 1 << p.l; i >= size {
		p.v, p.second = i-size+1, true
		p.mate = p.v
	} else {
		p.mate = p.other(i)
	}
	return p
}

// other returns the node with which node v shares vertex v, or -1.
func (p *vertex) other(v int) int {
	if i := v - 1 + 1<<p.l; v > 0 && i < p.nodes {
		return i
	}
	return -1
}

// secondSends reports which of the two nodes at vertex v has the block that the vertex sends along
// direction d in the given round of l steps: true means the one with the higher number. It is the
// parity of the number of v's set bits in the directions of all steps before.
func secondSends(v int, round int64, d int) bool {
	passed := bits.OnesCount(uint(v))*int(round&1) + bits.OnesCount(uint(v)&(1<<d-1))
	return passed&1 == 1
}

// distance returns the number of directions, counted from d upward and cyclically, to one in which
// v's bit is set: the number of trailing zeros of v rotated right by d. v must be positive.
func (p *vertex) distance(v, d int) int {
	if up := v >> d; up > 0 {
		return bits.TrailingZeros(uint(up))
	}
	return p.l - d + bits.TrailingZeros(uint(v))
}

// sent returns the block that vertex v sends along direction d in step j. It is
// negative if the vertex has none.
func (p *vertex) sent(v int, j int64, d int) int64 {
	if v == 0 {
		return min(j, p.last)
	}
	return min(j-int64(p.l)+int64(p.distance(v, d)), p.last)
}

// at returns the round and the direction of step j.
func (p *vertex) at(j int64) (round int64, d int) {
	round = j / int64(p.l)
	return round, int(j - round*int64(p.l))
}

// send returns what the node sends in step j.
func (p *vertex) send(j int64) (Transfer, bool) {
	if j < 0 || j >= p.steps {
		return Transfer{}, false
	}
	round, d := p.at(j)
	speaks := p.mate < 0 || p.second == secondSends(p.v, round, d)
	if j == p.last+int64(p.l) { // the two nodes exchange their last blocks
		return p.inside(j, speaks)
	}
	if !speaks {
		return p.inside(j, false)
	}
	w := p.v ^ 1<<d
	if w == 0 {
		return Transfer{}, false
	}
	t := Transfer{Step: j, Block: p.sent(p.v, j, d), Peer: w}
	if i := p.other(w); i >= 0 && !secondSends(w, round, d) {
		t.Peer = i
	}
	return t, t.Block >= 0
}

// recv returns what the node receives in step j.
func (p *vertex) recv(j int64) (Transfer, bool) {
	if j < 0 || j >= p.steps || p.v == 0 {
		return Transfer{}, false
	}
	round, d := p.at(j)
	speaks := p.mate >= 0 && p.second == secondSends(p.v, round, d)
	if j == p.last+int64(p.l) {
		return p.inside(j, !speaks)
	}
	if speaks {
		return p.inside(j, false)
	}
	w := p.v ^ 1<<d
	t := Transfer{Step: j, Block: p.sent(w, j, d), Peer: w}
	if i := p.other(w); i >= 0 && secondSends(w, round, d) {
		t.Peer = i
	}
	return t, t.Block >= 0
}

// inside returns the transfer in step j between the two nodes of a vertex: the last block, at the
// very end, from the one that would have sent next, and otherwise block m-1 from the one that is
// not sending.
func (p *vertex) inside(j int64, last bool) (Transfer, bool) {
	t := Transfer{Step: j, Block: j - int64(p.l) - 1, Peer: p.mate}
	if last {
		t.Block = p.last
	}
	return t, p.mate >= 0 && t.Block >= 0
}

// A way is the direction of a transfer, from a node's point of view.
type way bool

const (
	out way = true
	in  way = false
)

// do returns what the node sends or receives in step j.
func (p *vertex) do(w way, j int64) (Transfer, bool) {
	if w == out {
		return p.send(j)
	}
	return p.recv(j)
}

// next returns the first send or receive after a step. Pauses are short: at most l+1 steps until
// the first block arrives, then at most one step in l.
func (p *vertex) next(w way, after int64) (Transfer, bool) {
	if w == in && p.v == 0 || w == out && p.v == 1 && p.nodes == 2 {
		return Transfer{}, false // these have no transfers
	}
	for j := max(after, -1); j < p.steps-1; {
		j++
		if t, ok := p.do(w, j); ok {
			return t, true
		}
	}
	return Transfer{}, false
}
