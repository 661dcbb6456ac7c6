package schedule

// A Node is one node's part of a schedule. Use Schedule.Node.
type Node struct {
	schedule Schedule
	id       int
	pipe     vertex     // if the algorithm is BinomialPipeline
	hybrid   hybridNode // if it is Hybrid
}

// NextSend returns the node's first send in a step after the given one, and false if there is none.
// Start with -1 and continue with the Step of the last result; there is no other state. It takes
// O(log n) time at most, and constant time per send on average over all sends.
func (n *Node) NextSend(after int64) (Transfer, bool) { return n.next(out, after) }

// NextRecv returns the node's first receive in a step after the given one, as NextSend does for
// sends. Each node except the root has k receives.
func (n *Node) NextRecv(after int64) (Transfer, bool) { return n.next(in, after) }

func (n *Node) next(w way, after int64) (Transfer, bool) {
	switch n.schedule.algorithm {
	case BinomialPipeline:
		return n.pipe.next(w, after)
	case Hybrid:
		return n.hybrid.next(w, after)
	default:
		from, to := n.schedule.steps(w, n.id)
		if from >= to || after >= to-1 {
			return Transfer{}, false
		}
		return n.schedule.transfer(w, n.id, max(from, after+1)), true
	}
}
