package core

import "slices"

// history is the set of a log's entries.
type history struct {
	tail Version   // of the last entry that was trimmed; zero: none was
	runs []Version // the last entry of each epoch after it, in order
}

func (h *history) head() Version {
	if len(h.runs) == 0 {
		return h.tail
	}
	return h.runs[len(h.runs)-1]
}

// at returns the version of an entry, or of the tail. ok is false if the log does not have it.
func (h *history) at(index uint64) (v Version, ok bool) {
	if index == h.tail.Index {
		return h.tail, true
	}
	for _, r := range h.runs {
		if index > h.tail.Index && index <= r.Index {
			return Version{r.Epoch, index}, true
		}
	}
	return Version{}, false
}

func (h *history) has(v Version) bool {
	w, ok := h.at(v.Index)
	return ok && v == w
}

// list is the tail and the runs.
func (h *history) list() []Version { return append([]Version{h.tail}, h.runs...) }

// add appends v, which must have the next index.
func (h *history) add(v Version) {
	if n := len(h.runs); n > 0 && h.runs[n-1].Epoch == v.Epoch {
		h.runs[n-1] = v
		return
	}
	h.runs = append(h.runs, v)
}

func (h *history) truncate(after uint64) {
	h.runs = h.between(h.tail.Index, after)
}

func (h *history) trim(to uint64) {
	if v, ok := h.at(to); ok {
		h.tail = v
		h.runs = slices.DeleteFunc(h.runs, func(r Version) bool { return r.Index <= to })
	}
}

// between returns the runs of the entries after first, up to last.
func (h *history) between(first, last uint64) (runs []Version) {
	for _, r := range h.runs {
		if end := min(r.Index, last); end > first {
			runs, first = append(runs, Version{r.Epoch, end}), end
		}
	}
	return runs
}

// common is the last entry that is also in the log whose list this is. Two logs with an entry of the same
// version are the same up to it, and an epoch's entries are those of one primary: so it is in the
// newest epoch that both have.
func (h *history) common(list []Version) Version {
	own := h.list()
	for _, a := range slices.Backward(own) {
		for _, b := range slices.Backward(list) {
			if a.Epoch == b.Epoch {
				return Version{a.Epoch, min(a.Index, b.Index)}
			}
		}
	}
	return Version{}
}

// An operation is a pending change, with the state that is durable once it is.
type operation struct {
	seq  uint64
	head uint64 // of the log, as far as it is still the current one
	hard HardState
}

// disk is the durable state, and the pending changes.
type disk struct {
	seq     uint64
	pending []operation
	durable uint64 // the log, up to here
	hard    HardState
}

// synced makes pending changes durable.
func (d *disk) synced(seq uint64) {
	i := 0
	for ; i < len(d.pending) && d.pending[i].seq <= seq; i++ {
		d.durable, d.hard = max(d.durable, d.pending[i].head), d.pending[i].hard
	}
	d.pending = slices.Delete(d.pending, 0, i)
}
