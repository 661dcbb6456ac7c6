package schedule

import "math/bits"

// In the sequential, chain and tree algorithms a node's sends are in consecutive
// steps, and so are its receives.

// steps returns the range of steps in which node i sends or receives, excluding to.
func (s Schedule) steps(w way, i int) (from, to int64) {
	k := s.blocks
	switch s.algorithm {
	case Sequential:
		if w == out && i == 0 {
			return 0, k * int64(s.nodes-1)
		}
		from = k * int64(i-1)
	case Chain:
		if w == out && i < s.nodes-1 {
			return int64(i), int64(i) + k
		}
		from = int64(i - 1)
	case BinomialTree:
		if w == out { // from the round after the one in which it receives, while i+2^round < n
			return k * int64(bits.Len(uint(i))), k * int64(bits.Len(uint(s.nodes-1-i)))
		}
		from = k * int64(bits.Len(uint(i))-1)
	}
	if w == out || i == 0 {
		return 0, 0
	}
	return from, from + k
}

// transfer returns node i's send or receive in step j, which must be in its range.
func (s Schedule) transfer(w way, i int, j int64) Transfer {
	t := Transfer{Step: j, Block: j % s.blocks}
	switch {
	case s.algorithm == Chain && w == out:
		t.Block, t.Peer = j-int64(i), i+1
	case s.algorithm == Chain:
		t.Block, t.Peer = j-int64(i-1), i-1
	case s.algorithm == Sequential && w == out:
		t.Peer = 1 + int(j/s.blocks)
	case s.algorithm == BinomialTree && w == out:
		t.Peer = i + 1<<(j/s.blocks)
	case s.algorithm == BinomialTree:
		t.Peer = parent(i)
	}
	return t
}

// parent returns the node from which node i > 0 receives in a binomial tree.
func parent(i int) int { return i - 1<<(bits.Len(uint(i))-1) }
