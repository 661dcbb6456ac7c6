package schedule

import "slices"

// A Node is one node's part of a schedule. Use Schedule.Node.
type Node struct {
	schedule Schedule
	id       int
	pipe     vertex // if the algorithm is BinomialPipeline
	place    place  // if it is Hybrid
}

// ID returns the node's number.
func (n *Node) ID() int { return n.id }

// Schedule returns the schedule that this is a part of.
func (n *Node) Schedule() Schedule { return n.schedule }

// Send returns what the node sends in step j, and false if it sends nothing
// then, as in all steps that the schedule doesn't have. Constant time.
func (n *Node) Send(j int64) (Transfer, bool) {
	switch n.schedule.algorithm {
	case BinomialPipeline:
		return n.pipe.send(j)
	case Hybrid:
		return n.place.do(out, j)
	default:
		from, to := n.schedule.sending(n.id)
		if j < from || j >= to {
			return Transfer{}, false
		}
		return n.schedule.sent(n.id, j), true
	}
}

// Recv returns what the node receives in step j, and false if it receives
// nothing then. Constant time.
func (n *Node) Recv(j int64) (Transfer, bool) {
	switch n.schedule.algorithm {
	case BinomialPipeline:
		return n.pipe.recv(j)
	case Hybrid:
		return n.place.do(in, j)
	default:
		from, to := n.schedule.receiving(n.id)
		if j < from || j >= to {
			return Transfer{}, false
		}
		return n.schedule.received(n.id, j), true
	}
}

// NextSend returns the node's first send in a step after the given one, and
// false if there is none. Start with -1 and go on with the Step of the last
// answer; that is all the state there is. It takes O(log n) time at most, and a
// walk through all sends takes constant time for each on average.
func (n *Node) NextSend(after int64) (Transfer, bool) {
	switch n.schedule.algorithm {
	case BinomialPipeline:
		return n.pipe.next(out, after)
	case Hybrid:
		return n.place.next(out, after)
	default:
		from, to := n.schedule.sending(n.id)
		if from >= to || after >= to-1 {
			return Transfer{}, false
		}
		return n.schedule.sent(n.id, max(from, after+1)), true
	}
}

// NextRecv returns the node's first receive in a step after the given one, as
// NextSend does for sends. Each node but the root has k receives.
func (n *Node) NextRecv(after int64) (Transfer, bool) {
	switch n.schedule.algorithm {
	case BinomialPipeline:
		return n.pipe.next(in, after)
	case Hybrid:
		return n.place.next(in, after)
	default:
		from, to := n.schedule.receiving(n.id)
		if from >= to || after >= to-1 {
			return Transfer{}, false
		}
		return n.schedule.received(n.id, max(from, after+1)), true
	}
}

// Peers returns, in ascending order, all nodes to which the node sends or from
// which it receives in some message of the group, whatever the message's number
// of blocks. These are the connections that it needs: with the pipelines
// O(log n).
func (n *Node) Peers() []int {
	var p []int
	switch n.schedule.algorithm {
	case BinomialPipeline:
		p = n.pipe.peers(p)
	case Hybrid:
		p = n.place.peers(p)
	default:
		p = n.schedule.peers(n.id)
	}
	slices.Sort(p)
	return slices.Compact(p)
}
