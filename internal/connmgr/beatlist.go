package connmgr

import (
	"net/netip"
	"sync"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A beatList is the groups of a beat, all of one source.
type beatList struct {
	host         string // whose daemon has sent it
	boot, number uint64
	source       netip.Addr
	groups       []beatOf
}

// maxLists is the number of hosts whose lists are remembered. Others must send theirs with each
// beat.
const maxLists = 1024

// beatLists are the lists that other daemons' beats refer to by number.
type beatLists struct {
	mu     sync.Mutex
	byHost map[string]*beatList  // at most maxLists
	hosts  map[netip.Addr]string // by source
}

// from returns the known list with the host, boot and number of another one, or that one.
func (l *beatLists) from(list *beatList) *beatList {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.byHost[list.host]; known != nil && known.boot == list.boot && known.number == list.number {
		return known
	}
	return list
}

// of returns the list of the host with an address; an empty one if it is not known.
func (l *beatLists) of(source netip.Addr, boot, number uint64) *beatList {
	l.mu.Lock()
	host := l.hosts[source]
	l.mu.Unlock()
	if list := l.from(&beatList{host: host, boot: boot, number: number}); list.source == source {
		return list
	}
	return &beatList{}
}

// remember keeps a list that has a number.
func (l *beatLists) remember(list *beatList) {
	if list.number == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byHost == nil || max(len(l.byHost), len(l.hosts)) >= maxLists && (l.byHost[list.host] == nil || l.hosts[list.source] == "") {
		l.byHost, l.hosts = map[string]*beatList{}, map[netip.Addr]string{}
	}
	l.byHost[list.host], l.hosts[list.source] = list, list.host
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
