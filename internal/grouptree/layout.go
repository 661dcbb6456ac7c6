package grouptree

import (
	"cmp"
	"slices"
)

// A layout places a graph's boxes in columns from left to right, so that arrows go to
// the right wherever there is no loop. Arrows over several columns bend around what lies
// between: there they have vertices of their own.
type layout struct {
	columns [][]*vertex
	of      map[*box]*vertex
	paths   [][]*vertex // of each arrow, both ends included
}

// A vertex is a box, or a point that an arrow passes.
type vertex struct {
	box         *box // nil: a point
	column      int
	left, right []*vertex // neighbors
	order       float64   // within the column, while it is sought
	y           float64   // of the middle
}

// sweeps is how often the order is improved; small graphs need few.
const sweeps = 8

// newLayout places everything; height is that of a box, and gap lies between two.
func newLayout(g *graph, height func(*box) float64, gap float64) *layout {
	l := &layout{of: map[*box]*vertex{}, paths: make([][]*vertex, len(g.arrows))}
	columns := columnsOf(g)
	for _, b := range g.boxes {
		l.add(&vertex{box: b, column: columns[b]})
	}
	for i, a := range g.arrows {
		from, to := l.of[a.from], l.of[a.to]
		path := []*vertex{from}
		for c := from.column + 1; c < to.column; c++ {
			path = append(path, l.add(&vertex{column: c}))
		}
		path = append(path, to)
		l.paths[i] = path
		if from.column < to.column {
			for j := range len(path) - 1 {
				path[j].right = append(path[j].right, path[j+1])
				path[j+1].left = append(path[j+1].left, path[j])
			}
		}
	}
	size := func(p *vertex) float64 {
		if p.box == nil {
			return 0
		}
		return height(p.box)
	}
	l.arrange()
	l.spread(size, gap)
	return l
}

func (l *layout) add(p *vertex) *vertex {
	for len(l.columns) <= p.column {
		l.columns = append(l.columns, nil)
	}
	p.order = float64(len(l.columns[p.column]))
	l.columns[p.column] = append(l.columns[p.column], p)
	if p.box != nil {
		l.of[p.box] = p
	}
	return p
}

// columnsOf puts each box right of all that lead to it, arrows of loops aside.
func columnsOf(g *graph) map[*box]int {
	out := map[*box][]*box{}
	to := map[*box]bool{}
	for _, a := range g.arrows {
		out[a.from] = append(out[a.from], a.to)
		to[a.to] = true
	}
	var order []*box // backwards
	state := map[*box]int{}
	back := map[[2]*box]bool{}
	var visit func(b *box)
	visit = func(b *box) {
		state[b] = 1
		for _, next := range out[b] {
			switch state[next] {
			case 0:
				visit(next)
			case 1:
				back[[2]*box{b, next}] = true
			}
		}
		state[b] = 2
		order = append(order, b)
	}
	for _, b := range g.boxes {
		if state[b] == 0 {
			visit(b)
		}
	}
	column := map[*box]int{}
	last := 0
	for _, b := range slices.Backward(order) {
		for _, next := range out[b] {
			if !back[[2]*box{b, next}] {
				column[next] = max(column[next], column[b]+1)
				last = max(last, column[next])
			}
		}
	}
	for _, b := range g.boxes { // receivers that no node reaches
		if b.host && !to[b] && len(out[b]) == 0 {
			column[b] = max(last, 1)
		}
	}
	return column
}

// arrange orders the columns by where their neighbors are, to and fro, so that few
// arrows cross.
func (l *layout) arrange() {
	sort := func(column []*vertex, neighbors func(*vertex) []*vertex) {
		for _, p := range column {
			if near := neighbors(p); len(near) > 0 {
				sum := 0.0
				for _, n := range near {
					sum += n.order
				}
				p.y = sum / float64(len(near))
			} else {
				p.y = p.order
			}
		}
		slices.SortStableFunc(column, func(a, b *vertex) int { return cmp.Compare(a.y, b.y) })
		for i, p := range column {
			p.order = float64(i)
		}
	}
	for range sweeps {
		for _, c := range l.columns[1:] {
			sort(c, func(p *vertex) []*vertex { return p.left })
		}
		for _, c := range slices.Backward(l.columns[:len(l.columns)-1]) {
			sort(c, func(p *vertex) []*vertex { return p.right })
		}
	}
	for _, c := range l.columns[1:] {
		sort(c, func(p *vertex) []*vertex { return p.left })
	}
}

// spread gives the boxes their heights, from right to left: each is in the middle of those
// that it leads to, as far as those above it in its column leave it room.
func (l *layout) spread(size func(*vertex) float64, gap float64) {
	for _, c := range slices.Backward(l.columns) {
		free := 0.0 // the top of what is left of the column
		for _, p := range c {
			half := size(p) / 2
			p.y = 0
			for _, q := range p.right {
				p.y += q.y / float64(len(p.right))
			}
			p.y = max(p.y, free+half)
			free = p.y + half + gap
		}
	}
}
