package match

import "cmp"

// ranges finds, among ranges of one word, the best that holds a word: the one of
// the highest priority, then the one added first. It keeps any number of sets of
// ranges as treaps, each ordered by start, in which a subtree knows its largest
// end and its best range, so that most of it need not be visited: with disjoint
// ranges, a search follows one path. The shape of a treap depends on the numbers
// of its ranges only, not on chance.
type ranges struct {
	nodes []span // by number of the entry
	added uint64
}

// span is a range as a node of a treap. 0 is no node.
type span struct {
	lo, hi      uint64
	maxHi       uint64 // in the subtree
	order       uint64 // in which it was added
	prio        int32
	best        uint32 // in the subtree
	left, right uint32
}

// insert adds range e to the set with that root and returns the new root.
func (r *ranges) insert(root, e uint32, lo, hi uint64, prio int32) uint32 {
	for int(e) >= len(r.nodes) {
		r.nodes = append(r.nodes, span{})
	}
	r.added++
	r.nodes[e] = span{lo: lo, hi: hi, maxHi: hi, order: r.added, prio: prio, best: e}
	return r.put(root, e)
}

func (r *ranges) put(root, e uint32) uint32 {
	if root == 0 {
		return e
	}
	n := &r.nodes[root]
	switch {
	case height(e) > height(root):
		m := &r.nodes[e]
		m.left, m.right = r.split(root, e)
		root = e
	case r.before(e, root):
		n.left = r.put(n.left, e)
	default:
		n.right = r.put(n.right, e)
	}
	r.update(root)
	return root
}

// remove takes range e out of the set with that root and returns the new root.
func (r *ranges) remove(root, e uint32) uint32 {
	n := &r.nodes[root]
	switch {
	case root == e:
		return r.join(n.left, n.right)
	case r.before(e, root):
		n.left = r.remove(n.left, e)
	default:
		n.right = r.remove(n.right, e)
	}
	r.update(root)
	return root
}

// split parts a treap into what comes before range e and what comes after.
func (r *ranges) split(root, e uint32) (before, after uint32) {
	if root == 0 {
		return 0, 0
	}
	n := &r.nodes[root]
	if r.before(e, root) {
		before, n.left = r.split(n.left, e)
		after = root
	} else {
		n.right, after = r.split(n.right, e)
		before = root
	}
	r.update(root)
	return before, after
}

// join makes one treap of two, of which all of a come before all of b.
func (r *ranges) join(a, b uint32) uint32 {
	switch {
	case a == 0:
		return b
	case b == 0:
		return a
	case height(a) > height(b):
		r.nodes[a].right = r.join(r.nodes[a].right, b)
		r.update(a)
		return a
	}
	r.nodes[b].left = r.join(a, r.nodes[b].left)
	r.update(b)
	return b
}

func (r *ranges) update(e uint32) {
	n := &r.nodes[e]
	n.maxHi, n.best = n.hi, e
	for _, c := range [...]uint32{n.left, n.right} {
		if c != 0 {
			n.maxHi = max(n.maxHi, r.nodes[c].maxHi)
			if b := r.nodes[c].best; r.better(b, n.best) {
				n.best = b
			}
		}
	}
}

// find returns the best of best and the ranges below root that hold w.
func (r *ranges) find(root uint32, w uint64, best uint32) uint32 {
	for root != 0 {
		n := &r.nodes[root]
		if w > n.maxHi || best != 0 && !r.better(n.best, best) {
			break
		}
		if w < n.lo {
			root = n.left
			continue
		}
		if w <= n.hi && (best == 0 || r.better(root, best)) {
			best = root
		}
		best = r.find(n.left, w, best)
		root = n.right
	}
	return best
}

// better reports whether range a goes before b where both match.
func (r *ranges) better(a, b uint32) bool {
	x, y := &r.nodes[a], &r.nodes[b]
	return x.prio > y.prio || x.prio == y.prio && x.order < y.order
}

// before is the order in the treap.
func (r *ranges) before(a, b uint32) bool {
	return cmp.Or(cmp.Compare(r.nodes[a].lo, r.nodes[b].lo), cmp.Compare(a, b)) < 0
}

// height orders nodes from leaves to root, as if at random.
func height(e uint32) uint64 { return mix(seed, uint64(e)) }
