package model

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// The paper prints benefits over send and receive, whose time for N nodes it takes as log N times that for two, which it has
// in a figure only. So that one time is taken here from the benefit at 16 nodes, and the rest is predicted: how long the
// operation takes as a share of send and receive.
func TestPaperBenefits(t *testing.T) {
	p := Paper()
	allreduce := func(nodes, size int) Span { return p.Allreduce(nodes, p.Degree(nodes, size), size, Hops(nodes)) }
	broadcast := func(nodes, size int) Span {
		b := p.Broadcast(Hops(nodes), size, 3072)
		return Span{b, b}
	}
	for _, c := range []struct {
		name   string
		time   func(nodes, size int) Span
		size   int
		at16   float64 // benefit
		nodes  int
		wanted Span // benefit in the worst and the best case
	}{
		{"allreduce", allreduce, 4, 0.38, 512, Span{0.40, 0.35}},
		{"allreduce", allreduce, 4, 0.38, 1024, Span{0.41, 0.35}},
		{"allreduce", allreduce, 4096, 0.09, 512, Span{0.14, 0.14}},
		{"allreduce", allreduce, 4096, 0.09, 1024, Span{0.14, 0.14}},
		{"broadcast", broadcast, 4, 0.19, 512, Span{0.16, 0.16}},
		{"broadcast", broadcast, 4, 0.19, 1024, Span{0.16, 0.16}},
		{"broadcast", broadcast, 4096, 0.14, 512, Span{0.21, 0.21}},
		{"broadcast", broadcast, 4096, 0.14, 1024, Span{0.21, 0.21}},
	} {
		pair := c.time(16, c.size).Mean() / (1 - c.at16) / 4 // send and receive between two nodes
		is := c.time(c.nodes, c.size)
		for _, x := range []struct{ is, benefit float64 }{{is.Best, c.wanted.Best}, {is.Worst, c.wanted.Worst}} {
			got, want := x.is/(pair*float64(Hops(c.nodes))), 1-x.benefit
			if math.Abs(got/want-1) > 0.10 {
				t.Errorf("%s of %d bytes, %d nodes: %.3f of the time of send and receive; the paper has %.3f", c.name, c.size, c.nodes, got, want)
			}
		}
	}
}

// Figure 11 of the paper, as its section 6.2 tells it.
func TestPaperDegrees(t *testing.T) {
	p := Paper()
	for _, c := range []struct{ nodes, size, degree int }{
		{4, 4, 3}, {4, 512, 3}, {8, 4, 7}, {8, 4096, 1}, {16, 4, 3}, {16, 512, 3}, {16, 2048, 1}, {16, 4096, 1},
		{512, 4, 3}, {512, 2048, 1}, {512, 4096, 1}, {1024, 4, 3}, {1024, 4096, 1},
	} {
		if got := p.Degree(c.nodes, c.size); got != c.degree && p.Reduce(c.nodes, c.degree, c.size).Best > 1.10*p.Reduce(c.nodes, got, c.size).Best {
			t.Errorf("%d nodes, %d bytes: degree %d, with which it takes %v; the paper's %d takes %v", c.nodes, c.size, got,
				p.Reduce(c.nodes, got, c.size), c.degree, p.Reduce(c.nodes, c.degree, c.size))
		}
	}
	for _, nodes := range []int{16, 512, 1024} { // of which the paper gives benefits
		if small, large := p.Degree(nodes, 4), p.Degree(nodes, 4096); small != 3 || large != 1 {
			t.Errorf("%d nodes: degree %d for 4 bytes, and %d for 4096; the paper has 3 and 1", nodes, small, large)
		}
	}
}

// The number of nodes per step, and that the best case is the paper's equation.
func TestSteps(t *testing.T) {
	for _, c := range []struct {
		ranks, degree int
		want          []int
	}{{1, 3, nil}, {2, 15, []int{1}}, {16, 1, []int{1, 1, 1, 1}}, {16, 3, []int{3, 3}}, {16, 7, []int{7, 1}}, {16, 15, []int{15}}, {32, 3, []int{3, 3, 1}}, {5, 3, []int{3, 1}}} {
		if got := Steps(c.ranks, c.degree); !slices.Equal(got, c.want) {
			t.Errorf("%d ranks, degree %d: %v, want %v", c.ranks, c.degree, got, c.want)
		}
	}
	p := Paper()
	const n = 4096
	to := p.Combine + n*p.CombineByte
	want := 2 * (2*(p.DMA+p.NIC) + p.Library + p.Post + 3*n*p.WireByte + 3*to)
	if got := p.Reduce(16, 3, n).Best; math.Abs(got-want) > 1e-9 {
		t.Errorf("%v, and by the paper's equation %v", got, want)
	}
	if got := Degrees(16); !slices.Equal(got, []int{1, 3, 7, 15}) {
		t.Error(got)
	}
	if got := Degrees(6); !slices.Equal(got, []int{1, 3, 7}) {
		t.Error(got)
	}
}

// A path on which each message is dear has few steps; one whose receiver is slow has many.
func TestMeasured(t *testing.T) {
	for _, c := range []struct {
		p    Params
		want int
	}{
		{Measured(time.Millisecond, time.Microsecond, 0.001, 0.0001), 15},
		{Measured(10*time.Microsecond, 20*time.Microsecond, 0.001, 0.0001), 1},
		{Measured(200*time.Microsecond, 60*time.Microsecond, 0.001, 0.0001), 3},
	} {
		if got := c.p.Degree(16, 8); got != c.want {
			t.Errorf("%+v: degree %d, want %d", c.p, got, c.want)
		}
		if text := c.p.Explain(16, 0, 8); !strings.Contains(text, fmt.Sprintf("chosen: %d\n", c.want)) || strings.Contains(text, " to ") {
			t.Error(text)
		}
	}
	if text := Measured(time.Millisecond, time.Microsecond, 0, 0).Explain(16, 7, 0); !strings.Contains(text, "a barrier, 16 ranks") || !strings.Contains(text, "set: 7\n") {
		t.Error(text)
	}
	if text := Paper().Explain(16, 0, 8); !strings.Contains(text, " to ") {
		t.Error(text)
	}
	if got := Measured(time.Millisecond, time.Microsecond, 0, 0).message(); math.Abs(got-1000) > 1e-9 {
		t.Errorf("an empty message takes %v µs", got)
	}
}
