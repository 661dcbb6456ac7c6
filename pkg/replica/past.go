package replica

import (
	"slices"
	"sort"
)

// maxPast is the maximum number of intervals in past.
const maxPast = 1 << 14

// past has the requests of entries that were trimmed, which took effect for good: a host that was
// frozen may repeat them long after that. A session numbers its requests one after another, so they
// make few intervals.
type past struct {
	sessions map[uint64][]numbers // in order, with gaps between them
	n        int                  // of all sessions
}

// numbers are those from first to last.
type numbers struct{ first, last uint64 }

// find returns the index of the first interval of a session that is not before a number.
func (p *past) find(id requestID) (all []numbers, i int) {
	all = p.sessions[id.session]
	return all, sort.Search(len(all), func(i int) bool { return all[i].last >= id.seq })
}

func (p *past) has(id requestID) bool {
	all, i := p.find(id)
	return i < len(all) && all[i].first <= id.seq
}

// add adds a request. It returns false if there are too many intervals.
func (p *past) add(id requestID) bool {
	all, i := p.find(id)
	if i < len(all) && all[i].first <= id.seq {
		return true
	}
	after := i > 0 && all[i-1].last+1 == id.seq
	before := i < len(all) && all[i].first == id.seq+1
	switch {
	case after && before:
		all[i-1].last = all[i].last
		all = slices.Delete(all, i, i+1)
		p.n--
	case after:
		all[i-1].last = id.seq
	case before:
		all[i].first = id.seq
	case p.n == maxPast:
		return false
	default:
		all = slices.Insert(all, i, numbers{id.seq, id.seq})
		p.n++
	}
	if p.sessions == nil {
		p.sessions = map[uint64][]numbers{}
	}
	p.sessions[id.session] = all
	return true
}
