package schedule

import "math/bits"

// In the sequential, chain and tree algorithms a node's sends are in consecutive
// steps, and so are its receives.

// sending returns the steps in which node i sends, the second excluded.
func (s Schedule) sending(i int) (from, to int64) {
	k := s.blocks
	switch {
	case s.algorithm == Sequential && i == 0:
		return 0, k * int64(s.nodes-1)
	case s.algorithm == Chain && i < s.nodes-1:
		return int64(i), int64(i) + k
	case s.algorithm == BinomialTree:
		// From the round after the one it receives in, while i+2^round < n.
		return k * int64(bits.Len(uint(i))), k * int64(bits.Len(uint(s.nodes-1-i)))
	}
	return 0, 0
}

// receiving returns the steps in which node i receives, the second excluded.
func (s Schedule) receiving(i int) (from, to int64) {
	k := s.blocks
	if i == 0 {
		return 0, 0
	}
	switch s.algorithm {
	case Sequential:
		from = k * int64(i-1)
	case Chain:
		from = int64(i - 1)
	case BinomialTree:
		from = k * int64(bits.Len(uint(i))-1)
	}
	return from, from + k
}

// sent returns what node i sends in step j, in which it does send.
func (s Schedule) sent(i int, j int64) Transfer {
	switch s.algorithm {
	case Sequential:
		return Transfer{Step: j, Block: j % s.blocks, Peer: 1 + int(j/s.blocks)}
	case Chain:
		return Transfer{Step: j, Block: j - int64(i), Peer: i + 1}
	default:
		return Transfer{Step: j, Block: j % s.blocks, Peer: i + 1<<(j/s.blocks)}
	}
}

// received returns what node i receives in step j, in which it does receive.
func (s Schedule) received(i int, j int64) Transfer {
	switch s.algorithm {
	case Sequential:
		return Transfer{Step: j, Block: j % s.blocks, Peer: 0}
	case Chain:
		return Transfer{Step: j, Block: j - int64(i-1), Peer: i - 1}
	default:
		return Transfer{Step: j, Block: j % s.blocks, Peer: parent(i)}
	}
}

// parent returns the node from which node i > 0 receives in a binomial tree.
func parent(i int) int { return i - 1<<(bits.Len(uint(i))-1) }

// peers returns all nodes that node i exchanges blocks with.
func (s Schedule) peers(i int) []int {
	var p []int
	if i > 0 {
		from, _ := s.receiving(i)
		p = append(p, s.received(i, from).Peer)
	}
	from, to := s.sending(i)
	for j := from; j < to; j += s.blocks {
		p = append(p, s.sent(i, j).Peer)
	}
	return p
}
