package schedule

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

const (
	mostNodes  = 130
	mostBlocks = 64
)

// wantSteps is what the papers say; 0 if they don't.
func wantSteps(a Algorithm, n int, k int64) int64 {
	up := int64(math.Ceil(math.Log2(float64(n))))
	switch a {
	case Sequential:
		return k * int64(n-1)
	case Chain:
		return int64(n-1) + k - 1
	case BinomialTree:
		return up * k
	case BinomialPipeline:
		// l+k-1 (DSN §4.4), and one step more, for the nodes of a vertex to
		// exchange their last blocks, if n is not a power of two (TR §3).
		l := int64(math.Floor(math.Log2(float64(n))))
		if n&(n-1) != 0 {
			return l + k - 1 + 1
		}
		return l + k - 1
	}
	return 0
}

// TestAll checks every schedule of 2 to 130 nodes and 1 to 64 blocks against the
// rules of the model, as NextSend and NextRecv give it and as Send and Recv do.
func TestAll(t *testing.T) {
	for _, a := range []Algorithm{Sequential, Chain, BinomialTree, BinomialPipeline} {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			var c checker
			var p, each plan
			for n := 2; n <= mostNodes; n++ {
				for k := int64(1); k <= mostBlocks; k++ {
					s := mustNew(t, a, n, k, nil)
					if want := wantSteps(a, n, k); s.Steps() != want {
						t.Fatalf("n=%d k=%d: %d steps, want %d", n, k, s.Steps(), want)
					}
					p = walkInto(t, s, p)
					if err := c.check(p); err != nil {
						t.Fatalf("n=%d k=%d: %v", n, k, err)
					}
					if n > 33 && k%9 != 1 || s.Steps() > 500 {
						continue // each step takes its time
					}
					each = stepsInto(t, s, each)
					if !equal(p, each) {
						t.Fatalf("n=%d k=%d: Send and Recv differ from NextSend and NextRecv", n, k)
					}
				}
			}
		})
	}
}

// TestPeers: Peers lists those with which a node exchanges blocks in messages of some size,
// no more and no less, and that these lists are mutual.
func TestPeers(t *testing.T) {
	for _, a := range []Algorithm{Sequential, Chain, BinomialTree, BinomialPipeline, Hybrid} {
		for n := 2; n <= 70; n++ {
			racks := someRacks(t, a, n, uint64(n))
			met := make([]map[int]bool, n)
			for _, k := range []int64{1, 2, 3, 40} {
				for i, ts := range walk(t, mustNew(t, a, n, k, racks)).sends {
					for _, x := range ts {
						for from, to := range map[int]int{i: x.Peer, x.Peer: i} {
							if met[from] == nil {
								met[from] = map[int]bool{}
							}
							met[from][to] = true
						}
					}
				}
			}
			for i := range n {
				want := []int{}
				for p := range met[i] {
					want = append(want, p)
				}
				slices.Sort(want)
				one := node(t, mustNew(t, a, n, 1, racks), i)
				if have := one.Peers(); !slices.Equal(have, want) {
					t.Fatalf("%v, n=%d: node %d has peers %v, want %v", a, n, i, have, want)
				}
			}
		}
	}
}

// someRacks returns random racks for the hybrid algorithm, nil for all others.
func someRacks(t testing.TB, a Algorithm, n int, seed uint64) *Racks {
	t.Helper()
	if a != Hybrid {
		return nil
	}
	random := rand.New(rand.NewPCG(seed, 1))
	rack := make([]int, n)
	many := 1 + random.IntN(n)
	for i := range rack {
		rack[i] = random.IntN(many)*7 - 3
	}
	r, err := RacksOf(rack)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestFirst: the node that sends the first block doesn't depend on the size of the message,
// as soon as it has two blocks; where n is a power of two, not even then.
func TestFirst(t *testing.T) {
	for _, a := range []Algorithm{Sequential, Chain, BinomialTree, BinomialPipeline, Hybrid} {
		for n := 2; n <= mostNodes; n++ {
			racks := someRacks(t, a, n, uint64(n))
			for i := 1; i < n; i++ {
				two := node(t, mustNew(t, a, n, 2, racks), i)
				want, _ := two.NextRecv(-1)
				for _, k := range []int64{1, 3, 4, 5, 9, 64, 1000} {
					if k == 1 && (a == Hybrid || a == BinomialPipeline && n&(n-1) != 0) {
						continue
					}
					one := node(t, mustNew(t, a, n, k, racks), i)
					if have, ok := one.NextRecv(-1); !ok || have.Peer != want.Peer {
						t.Fatalf("%v, n=%d k=%d: node %d hears first of node %d, with two blocks of node %d", a, n, k, i, have.Peer, want.Peer)
					}
				}
			}
		}
	}
}

// TestLarge looks at the largest schedules here and there: sender and receiver
// agree, every pause is short, and no step is out of range.
func TestLarge(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for _, a := range []Algorithm{Sequential, Chain, BinomialTree, BinomialPipeline, Hybrid} {
		for _, n := range []int{2, 3, 1000, 1 << 19, 1<<20 - 1, MaxNodes} {
			if a == Hybrid && n > 1000 && n < MaxNodes {
				continue // racks as large take their time to make
			}
			racks := someRacks(t, a, n, 3)
			s := mustNew(t, a, n, MaxBlocks, racks)
			for range 2000 {
				one := node(t, s, random.IntN(n))
				j := random.Int64N(s.Steps())
				for i, next := range []func(int64) (Transfer, bool){one.NextSend, one.NextRecv} {
					x, ok := next(j)
					if !ok {
						continue
					}
					other := node(t, s, x.Peer)
					mirror := other.Recv
					if i == 1 {
						mirror = other.Send
					}
					if y, ok := mirror(x.Step); !ok || y.Block != x.Block || y.Peer != one.ID() {
						t.Fatalf("%v, n=%d: node %d has %+v, and its peer %+v, %v", a, n, one.ID(), x, y, ok)
					}
					if x.Step <= j || x.Step >= s.Steps() || x.Block < 0 || x.Block >= MaxBlocks {
						t.Fatalf("%v, n=%d: after step %d node %d has %+v", a, n, j, one.ID(), x)
					}
				}
			}
			last := node(t, s, n-1)
			if x, ok := last.NextRecv(math.MaxInt64); ok {
				t.Fatalf("%v, n=%d: after the end there is %+v", a, n, x)
			}
			if x, ok := last.NextSend(math.MaxInt64); ok {
				t.Fatalf("%v, n=%d: after the end there is %+v", a, n, x)
			}
			first, ok := last.NextRecv(math.MinInt64)
			if again, _ := last.NextRecv(-1); !ok || again != first {
				t.Fatalf("%v, n=%d: node %d receives first %+v, or %+v", a, n, n-1, first, again)
			}
		}
	}
}

// TestPauses: with a pipeline, NextSend and NextRecv never have to look further
// than at 2l+2 steps.
func TestPauses(t *testing.T) {
	for n := 2; n <= mostNodes; n++ {
		l := int64(bits.Len(uint(n)) - 1)
		p := walk(t, mustNew(t, BinomialPipeline, n, 50, nil))
		for _, all := range [][][]Transfer{p.sends, p.recvs} {
			for i, ts := range all {
				last := int64(-1)
				for _, x := range ts {
					if x.Step-last > 2*l+2 {
						t.Fatalf("n=%d: node %d pauses from step %d to %d", n, i, last, x.Step)
					}
					last = x.Step
				}
			}
		}
	}
}

func TestErrors(t *testing.T) {
	racks := sized(t, 3, 2)
	for _, c := range []struct {
		a      Algorithm
		nodes  int
		blocks int64
		racks  *Racks
		want   error
	}{
		{Algorithm(5), 4, 1, nil, ErrAlgorithm},
		{Algorithm(255), 4, 1, nil, ErrAlgorithm},
		{Chain, 1, 1, nil, ErrNodes},
		{Chain, 0, 1, nil, ErrNodes},
		{Chain, -1, 1, nil, ErrNodes},
		{Chain, MaxNodes + 1, 1, nil, ErrNodes},
		{Chain, 4, 0, nil, ErrBlocks},
		{Chain, 4, -1, nil, ErrBlocks},
		{Chain, 4, MaxBlocks + 1, nil, ErrBlocks},
		{Hybrid, 4, 1, nil, ErrRacks},
		{Hybrid, 4, 1, racks, ErrRacks},
		{Chain, 5, 1, racks, ErrRacks},
		{Chain, 5, 1, nil, nil},
		{Hybrid, 5, 1, racks, nil},
	} {
		if _, err := New(c.a, c.nodes, c.blocks, c.racks); !errors.Is(err, c.want) {
			t.Errorf("New(%v, %d, %d, %v): %v, want %v", c.a, c.nodes, c.blocks, c.racks, err, c.want)
		}
	}
	s := mustNew(t, Chain, 5, 1, nil)
	for _, i := range []int{-1, 5, math.MaxInt} {
		if _, err := s.Node(i); !errors.Is(err, ErrNode) {
			t.Errorf("Node(%d): %v", i, err)
		}
	}
	for _, nodes := range []int{0, 1, MaxNodes + 1} {
		if _, err := RacksOf(make([]int, nodes)); !errors.Is(err, ErrNodes) {
			t.Errorf("racks of %d nodes: %v", nodes, err)
		}
	}
}

func TestNames(t *testing.T) {
	for a := range Algorithm(len(names)) {
		text, err := a.MarshalText()
		if err != nil || string(text) != a.String() {
			t.Errorf("%v: %q, %v", a, text, err)
		}
		var b Algorithm
		if err := b.UnmarshalText(text); err != nil || b != a {
			t.Errorf("%q: %v, %v", text, b, err)
		}
	}
	var a Algorithm
	if err := a.UnmarshalText([]byte("trinomial")); !errors.Is(err, ErrAlgorithm) {
		t.Errorf("an unknown name: %v", err)
	}
	if _, err := Algorithm(9).MarshalText(); !errors.Is(err, ErrAlgorithm) {
		t.Errorf("an unknown number: %v", err)
	}
	if have := fmt.Sprint(Algorithm(9)); have != "Algorithm(9)" {
		t.Errorf("an unknown number prints as %q", have)
	}
}
