package planner

// A Holding is a branch that another switch holds for a step, or has been asked to.
type Holding[S comparable] struct {
	Owner    S
	Sequence uint64 // of the last request
	Asking   bool   // the request is under way
}

// Holdings are all that another switch holds, by group and destination. What is not among
// them is released by the next sync.
type Holdings[K, S comparable] map[K]Holding[S]

// Ask begins a request for a step, which has one at a time for a branch. It reports false if another step holds the branch.
func (h Holdings[K, S]) Ask(k K, owner S, sequence uint64) bool {
	x, ok := h[k]
	if ok && x.Owner != owner {
		return false
	}
	h[k] = Holding[S]{owner, sequence, true}
	return true
}

// Answered ends a request. kept says that the branch is held: by the request, or before.
func (h Holdings[K, S]) Answered(k K, kept bool) {
	x := h[k]
	if x.Asking = false; kept {
		h[k] = x
	} else {
		delete(h, k) // it may have been taken nevertheless
	}
}

// Release ends a holding, and reports whether the switch has to be told: not if another
// step holds the branch by now.
func (h Holdings[K, S]) Release(k K, owner S) bool {
	if x, ok := h[k]; ok && x.Owner != owner {
		return false
	}
	delete(h, k)
	return true
}
