package connmgr

import (
	"net/netip"
	"sync"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A beatList is the groups of a beat, all of one source.
type beatList struct {
	boot, number uint64
	groups       []beatOf
}

// maxLists is the number of sources whose lists are remembered. Others must send theirs with each
// beat.
const maxLists = 1024

// beatLists are the lists that other daemons' beats refer to by number.
type beatLists struct {
	mu       sync.Mutex
	bySource map[netip.Addr]*beatList // at most maxLists
}

// of returns the list that a source has sent with that number; an empty one if it is not known.
func (l *beatLists) of(source netip.Addr, boot, number uint64) *beatList {
	l.mu.Lock()
	defer l.mu.Unlock()
	if list := l.bySource[source]; list != nil && list.boot == boot && list.number == number {
		return list
	}
	return &beatList{}
}

// remember keeps a list that has groups, and a number.
func (l *beatLists) remember(list *beatList) {
	if list.number == 0 {
		return
	}
	source := list.groups[0].id.source
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bySource == nil || len(l.bySource) >= maxLists && l.bySource[source] == nil {
		l.bySource = map[netip.Addr]*beatList{}
	}
	l.bySource[source] = list
}

// answerBeat renews the leases of a beat's groups, and answers it.
func (t *members) answerBeat(list *beatList) *mcrdmav1.BeatResponse {
	res := &mcrdmav1.BeatResponse{}
	for _, b := range list.groups {
		if text, ok := t.beat(b.id, b.formation); !ok {
			res.Gone = append(res.Gone, t.gone(b, text))
		}
	}
	if len(res.GetGone()) == 0 && len(list.groups) > 0 {
		res.List = list.number
		t.lists.remember(list)
	}
	return res
}
