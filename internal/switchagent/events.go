package switchagent

import (
	"net/netip"
	"sync"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

type eventType = mcrdmav1.WatchResponse_Type

const (
	eventInstalled = mcrdmav1.WatchResponse_TYPE_INSTALLED
	eventUpdated   = mcrdmav1.WatchResponse_TYPE_UPDATED
	eventRemoved   = mcrdmav1.WatchResponse_TYPE_REMOVED
	eventExpired   = mcrdmav1.WatchResponse_TYPE_EXPIRED
	eventSynced    = mcrdmav1.WatchResponse_TYPE_SYNCED
	eventLost      = mcrdmav1.WatchResponse_TYPE_LOST
)

// watchQueue is how many events a watcher may lag.
const watchQueue = 1024

// events tells watchers what happens to groups.
type events struct {
	mu       sync.Mutex
	watchers map[*watcher]struct{}
}

// A watcher's queue is closed when the watcher was too slow.
type watcher struct {
	queue chan *mcrdmav1.WatchResponse
	sees  func(source netip.Addr) bool
}

func (e *events) tell(t eventType, g *mcrdmav1.GroupStatus) {
	source, err := netip.ParseAddr(g.GetGroup().GetKey().GetSource())
	if err != nil {
		return // it came from an address
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for w := range e.watchers {
		if !w.sees(source) {
			continue
		}
		select {
		case w.queue <- &mcrdmav1.WatchResponse{Type: t, Group: g}:
		default:
			delete(e.watchers, w)
			close(w.queue)
		}
	}
}

func (e *events) watch(sees func(netip.Addr) bool) *watcher {
	w := &watcher{make(chan *mcrdmav1.WatchResponse, watchQueue), sees}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watchers == nil {
		e.watchers = map[*watcher]struct{}{}
	}
	e.watchers[w] = struct{}{}
	return w
}

func (e *events) unwatch(w *watcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.watchers, w)
}
