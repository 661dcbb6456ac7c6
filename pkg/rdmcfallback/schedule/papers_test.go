package schedule

import (
	"math"
	"math/bits"
	"testing"
)

// published is the send scheme of DSN §4.4 to the letter, but that its "sigma(n, j%l)" has
// to be sigma(i, j%l), and an (l+k)th step isn't there. It returns the block that node i of
// 2^l sends in step j, and the node it sends to.
func published(i, l int, k, j int64) (b int64, to int, ok bool) {
	sigma := func(x uint64, r int64) uint64 { // right circular shift of l bits
		for range r {
			x = x>>1 | x&1<<(l-1)
		}
		return x
	}
	trZe := func(x uint64) int64 { // trailing zeros
		n := int64(0)
		for ; x&1 == 0; x >>= 1 {
			n++
		}
		return n
	}
	to = i ^ 1<<(j%int64(l))
	s := sigma(uint64(i), j%int64(l))
	if s == 0 {
		return min(j, k-1), to, true
	}
	if s == 1 {
		return 0, to, false
	}
	if r := trZe(s); j-int64(l)+r >= 0 {
		return min(j-int64(l)+r, k-1), to, true
	}
	return 0, to, false
}

func TestPublishedFormula(t *testing.T) {
	for l := 1; l <= 7; l++ {
		for k := int64(1); k <= mostBlocks; k++ {
			s := mustNew(t, BinomialPipeline, 1<<l, k, nil)
			for i := range 1 << l {
				one := node(t, s, i)
				for j := range int64(l) + k - 1 {
					b, to, ok := published(i, l, k, j)
					x, have := one.Send(j)
					if have != ok || ok && x != (Transfer{Step: j, Block: b, Peer: to}) {
						t.Fatalf("n=%d k=%d: node %d sends %+v (%v) in step %d, the paper block %d to node %d (%v)", 1<<l, k, i, x, have, j, b, to, ok)
					}
				}
			}
		}
	}
}

// TestOneBlockIsTree: with a single block the pipeline is a binomial tree (TR
// §3), so no slower than the tree that the tree algorithm makes.
func TestOneBlockIsTree(t *testing.T) {
	for n := 2; n <= mostNodes; n++ {
		pipeline, tree := mustNew(t, BinomialPipeline, n, 1, nil), mustNew(t, BinomialTree, n, 1, nil)
		if pipeline.Steps() != tree.Steps() {
			t.Errorf("n=%d: %d steps, the tree has %d", n, pipeline.Steps(), tree.Steps())
		}
	}
}

// TestDescription holds the pipeline for any n against the words of DSN §4.4 and
// TR §3, with the blocks that each node has when a step begins.
func TestDescription(t *testing.T) {
	for n := 2; n <= mostNodes; n++ {
		for _, k := range []int64{1, 2, 3, 7, 24} {
			describe(t, n, k)
		}
	}
}

func describe(t *testing.T, n int, k int64) {
	s := mustNew(t, BinomialPipeline, n, k, nil)
	l := bits.Len(uint(n)) - 1
	vertexOf := func(i int) int {
		if i >= 1<<l {
			return i - 1<<l + 1
		}
		return i
	}
	has := make([]uint64, n) // blocks of each node
	has[0] = 1<<k - 1
	highest := func(set uint64) int64 { return int64(bits.Len64(set)) - 1 }
	for j := range s.Steps() {
		d := int(j % int64(l))
		final := j == int64(l)+k-1
		got := make([]uint64, n)
		for i := range n {
			one := node(t, s, i)
			v := vertexOf(i)
			mate := -1
			if v > 0 && v+1<<l-1 < n {
				mate = v + (1<<l - 1) - (i - v)
			}
			all := has[i]
			if mate >= 0 {
				all |= has[mate]
			}
			if x, ok := one.Send(j); ok {
				got[x.Peer] |= 1 << x.Block
				switch {
				case x.Peer == mate:
					if has[mate]>>x.Block&1 == 1 {
						t.Fatalf("n=%d k=%d step %d: node %d hands over block %d, which its partner has", n, k, j, i, x.Block)
					}
				case final:
					t.Fatalf("n=%d k=%d: node %d sends to another vertex in the extra step", n, k, i)
				case vertexOf(x.Peer) != v^1<<d:
					t.Fatalf("n=%d k=%d step %d: node %d sends to node %d, not along direction %d", n, k, j, i, x.Peer, d)
				case v == 0 && x.Block != min(j, k-1), v != 0 && x.Block != highest(all):
					t.Fatalf("n=%d k=%d step %d: node %d sends block %d and its vertex has %b", n, k, j, i, x.Block, all)
				case x.Peer == 0:
					t.Fatalf("n=%d k=%d step %d: node %d sends to the root", n, k, j, i)
				}
				if y, ok := one.Recv(j); ok && mate >= 0 && x.Peer != mate && y.Peer != mate {
					t.Fatalf("n=%d k=%d step %d: node %d both sends and receives for its vertex", n, k, j, i)
				}
			} else if mate < 0 && !final && v^1<<d != 0 && all != 0 {
				t.Fatalf("n=%d k=%d step %d: node %d has blocks and sends none", n, k, j, i)
			}
		}
		for i := range n {
			has[i] |= got[i]
		}
		for v := 1; v+1<<l-1 < n; v++ {
			a, b := has[v], has[v+1<<l-1]
			if bits.OnesCount64(a&^b) > 1 || bits.OnesCount64(b&^a) > 1 {
				t.Fatalf("n=%d k=%d: after step %d the two nodes of vertex %d have %b and %b", n, k, j, v, a, b)
			}
		}
	}
}

// TestSlack: the average slack of the nodes that relay a block in a steady step is
// 2(1-(l-1)/(n-2)) (DSN §4.5, item 2).
func TestSlack(t *testing.T) {
	for l := 2; l <= 7; l++ {
		n := 1 << l
		want := 2 * (1 - float64(l-1)/float64(n-2))
		for _, k := range []int64{2, 5, 64} {
			p := walk(t, mustNew(t, BinomialPipeline, n, k, nil))
			held := make([][]int64, n)
			for i, recvs := range p.recvs {
				held[i] = make([]int64, k)
				for _, x := range recvs {
					held[i][x.Block] = x.Step
				}
			}
			sum, relays := make([]int64, p.steps), make([]int64, p.steps)
			for i, sends := range p.sends[1:] {
				for _, x := range sends {
					sum[x.Step] += x.Step - held[i+1][x.Block]
					relays[x.Step]++
				}
			}
			for j := int64(l); j < p.steps; j++ {
				if have := float64(sum[j]) / float64(relays[j]); math.Abs(have-want) > 1e-12 {
					t.Errorf("n=%d k=%d: the average slack in step %d is %v, want %v", n, k, j, have, want)
				}
			}
		}
		t.Logf("n=%d: average slack %.4f", n, want)
	}
}
