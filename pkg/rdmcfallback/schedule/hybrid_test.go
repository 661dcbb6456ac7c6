package schedule

import (
	"slices"
	"testing"
)

// TestHybrid checks hybrid schedules in racks of all kinds against the rules of
// the model.
func TestHybrid(t *testing.T) {
	t.Parallel()
	var c checker
	var p, each plan
	try := func(r *Racks, k int64) {
		s := mustNew(t, Hybrid, r.Nodes(), k, r)
		p = walkInto(t, s, p)
		if err := c.check(p); err != nil {
			t.Fatalf("%+v k=%d: %v", *r, k, err)
		}
		onlyLeadersLeave(t, r, p)
		if k%9 != 1 {
			return // each step takes its time
		}
		if each = stepsInto(t, s, each); !equal(p, each) {
			t.Fatalf("%+v k=%d: Send and Recv differ from NextSend and NextRecv", *r, k)
		}
	}
	for n := 2; n <= mostNodes; n++ {
		for k := int64(1); k <= mostBlocks; k++ {
			try(someRacks(t, Hybrid, n, uint64(n)<<8|uint64(k)), k)
		}
	}
	for _, sizes := range [][]int{{2}, {7}, {1, 1}, {1, 1, 1, 1, 1}, {1, 5}, {5, 1}, {8, 8, 8, 8}, {3, 1, 1, 9}} {
		r := sized(t, sizes...)
		for k := int64(1); k <= mostBlocks; k++ {
			try(r, k)
		}
	}
}

// onlyLeadersLeave: between racks blocks go only from leader to leader, and each
// rack but the root's receives each block once.
func onlyLeadersLeave(t *testing.T, r *Racks, p plan) {
	t.Helper()
	came := make([]int64, r.Len())
	for i, sends := range p.sends {
		for _, x := range sends {
			from, to := r.Rack(i), r.Rack(x.Peer)
			if from == to {
				continue
			}
			came[to]++
			if i != r.Leader(from) || x.Peer != r.Leader(to) {
				t.Fatalf("%+v: node %d sends to node %d in another rack", *r, i, x.Peer)
			}
		}
	}
	for x, n := range came {
		if x > 0 && n != p.blocks || x == 0 && n != 0 {
			t.Fatalf("%+v: rack %d received %d blocks of %d", *r, x, n, p.blocks)
		}
	}
}

// TestHybridSteps: the steps of both levels add up, and where there is but one
// level, there are no others.
func TestHybridSteps(t *testing.T) {
	for _, c := range []struct {
		sizes []int
		k     int64
		want  int64
	}{
		{[]int{16}, 10, 4 + 9},
		{[]int{1, 1, 1, 1, 1, 1, 1, 1}, 10, 3 + 9},
		{[]int{8, 8, 8, 8}, 64, 2 + 63 + 3 + 63},
		{[]int{9, 8, 8, 8, 1}, 64, 3 + 63 + 4 + 63},
	} {
		r := sized(t, c.sizes...)
		if have := mustNew(t, Hybrid, r.Nodes(), c.k, r).Steps(); have != c.want {
			t.Errorf("racks of %v, %d blocks: %d steps, want %d", c.sizes, c.k, have, c.want)
		}
	}
}

// sized returns racks of these sizes: the first has the first nodes, and so on.
func sized(t *testing.T, sizes ...int) *Racks {
	t.Helper()
	var rack []int
	for i, size := range sizes {
		rack = append(rack, slices.Repeat([]int{i}, size)...)
	}
	r, err := RacksOf(rack)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRacks(t *testing.T) {
	r, err := RacksOf([]int{7, -2, 7, 0, -2, 7})
	if err != nil {
		t.Fatal(err)
	}
	var leaders, sizes, racks []int
	for x := range r.Len() {
		leaders, sizes = append(leaders, r.Leader(x)), append(sizes, r.Size(x))
	}
	for i := range r.Nodes() {
		racks = append(racks, r.Rack(i))
	}
	if want := []int{0, 1, 3}; !slices.Equal(leaders, want) {
		t.Errorf("leaders %v, want %v", leaders, want)
	}
	if want := []int{3, 2, 1}; !slices.Equal(sizes, want) {
		t.Errorf("sizes %v, want %v", sizes, want)
	}
	if want := []int{0, 1, 0, 2, 1, 0}; !slices.Equal(racks, want) {
		t.Errorf("racks %v, want %v", racks, want)
	}
}
