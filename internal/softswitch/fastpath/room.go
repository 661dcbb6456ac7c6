package fastpath

import "slices"

// room tracks the free cells of map copies. The copies of a PRE group are adjacent.
type room struct {
	gaps  []block          // free blocks, in ascending order, not adjacent
	taken map[uint16]block // by PRE group
}

type block struct{ first, n uint32 }

func newRoom(cells uint32) room { return room{[]block{{0, cells}}, map[uint16]block{}} }

// take allocates n cells for a PRE group, and keeps its present ones if they are as many. It
// returns false if there are not enough.
func (r *room) take(pre uint16, n int) (uint32, bool) {
	want := uint32(n) //nolint:gosec // ports are few
	if b, there := r.taken[pre]; there {
		if b.n == want {
			return b.first, true
		}
		r.give(pre)
	}
	for i := range r.gaps {
		if g := &r.gaps[i]; g.n >= want {
			b := block{g.first, want}
			g.first, g.n = g.first+want, g.n-want
			if g.n == 0 {
				r.gaps = slices.Delete(r.gaps, i, i+1)
			}
			r.taken[pre] = b
			return b.first, true
		}
	}
	return 0, false
}

// give frees the cells of a PRE group.
func (r *room) give(pre uint16) {
	b, there := r.taken[pre]
	if !there {
		return
	}
	delete(r.taken, pre)
	i, _ := slices.BinarySearchFunc(r.gaps, b, func(a, b block) int { return int(a.first) - int(b.first) })
	r.gaps = slices.Insert(r.gaps, i, b)
	for _, i := range []int{i, i - 1} { // merge with the next gap, then with the previous one
		if i >= 0 && i+1 < len(r.gaps) && r.gaps[i].first+r.gaps[i].n == r.gaps[i+1].first {
			r.gaps[i].n += r.gaps[i+1].n
			r.gaps = slices.Delete(r.gaps, i+1, i+2)
		}
	}
}
