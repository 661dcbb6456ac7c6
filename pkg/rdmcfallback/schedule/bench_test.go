package schedule

import (
	"fmt"
	"testing"
)

// all runs f as a benchmark for each algorithm, with one node of a large group
// that sends and receives.
func all(b *testing.B, f func(b *testing.B, n *Node, steps int64)) {
	for _, a := range []Algorithm{Sequential, Chain, BinomialTree, BinomialPipeline, Hybrid} {
		for _, nodes := range []int{8, 1000} {
			b.Run(fmt.Sprintf("%v/%d", a, nodes), func(b *testing.B) {
				s := mustNew(b, a, nodes, MaxBlocks, someRacks(b, a, nodes, 7))
				n := node(b, s, 3)
				b.ReportAllocs()
				f(b, &n, s.Steps())
			})
		}
	}
}

// sink keeps results from being optimized away.
var sink int64

// BenchmarkStep is what a node sends and receives in one step.
func BenchmarkStep(b *testing.B) {
	all(b, func(b *testing.B, n *Node, steps int64) {
		j := int64(0)
		for b.Loop() {
			x, _ := n.Send(j)
			y, _ := n.Recv(j)
			sink += x.Block + y.Block
			if j++; j == steps {
				j = 0
			}
		}
	})
}

// BenchmarkNext is the next receive, in order.
func BenchmarkNext(b *testing.B) {
	all(b, func(b *testing.B, n *Node, _ int64) {
		j := int64(-1)
		for b.Loop() {
			x, ok := n.NextRecv(j)
			j = x.Step
			if !ok {
				j = -1
			}
			sink += x.Block
		}
	})
}

// BenchmarkMessage is what has to be done for each message, before its first
// block.
func BenchmarkMessage(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		s, err := New(BinomialPipeline, 100, 64, nil)
		if err != nil {
			b.Fatal(err)
		}
		n, err := s.Node(77)
		if err != nil {
			b.Fatal(err)
		}
		x, _ := n.NextRecv(-1)
		sink += x.Block
	}
}

// BenchmarkChoose is a choice, the slower one with racks.
func BenchmarkChoose(b *testing.B) {
	for _, h := range []Hints{{}, {Racks: someRacks(b, Hybrid, 512, 7), Uplink: 1e10}} {
		b.Run(fmt.Sprintf("racks=%v", h.Racks != nil), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Choose(64<<20, 512, h); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestNoAllocations: neither steps nor what has to be done for each message
// allocate.
func TestNoAllocations(t *testing.T) {
	for _, a := range []Algorithm{Sequential, Chain, BinomialTree, BinomialPipeline, Hybrid} {
		racks := someRacks(t, a, 100, 7)
		allocs := testing.AllocsPerRun(100, func() {
			s, _ := New(a, 100, 64, racks)
			n, _ := s.Node(7)
			x, _ := n.NextSend(-1)
			y, _ := n.NextRecv(3)
			z, _ := n.Send(5)
			w, _ := n.Recv(5)
			sink += x.Block + y.Block + z.Block + w.Block + s.Steps()
		})
		if allocs > 0 {
			t.Errorf("%v: %v allocations", a, allocs)
		}
	}
}
