package fastpath

import "slices"

// room is which cells of map copies are free. The copies of a PRE group lie side by side.
type room struct {
	gaps  []block          // in ascending order, none beside another
	taken map[uint16]block // by PRE group
}

type block struct{ first, n uint32 }

func newRoom(cells uint32) room { return room{[]block{{0, cells}}, map[uint16]block{}} }

// take gives a PRE group n cells, those that it has if they are as many; false: there are none.
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

// give takes them back.
func (r *room) give(pre uint16) {
	b, there := r.taken[pre]
	if !there {
		return
	}
	delete(r.taken, pre)
	i, _ := slices.BinarySearchFunc(r.gaps, b, func(a, b block) int { return int(a.first) - int(b.first) })
	r.gaps = slices.Insert(r.gaps, i, b)
	for _, i := range []int{i, i - 1} { // with the gap behind, then with the one before
		if i >= 0 && i+1 < len(r.gaps) && r.gaps[i].first+r.gaps[i].n == r.gaps[i+1].first {
			r.gaps[i].n += r.gaps[i+1].n
			r.gaps = slices.Delete(r.gaps, i+1, i+2)
		}
	}
}
