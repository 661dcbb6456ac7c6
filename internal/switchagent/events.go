package switchagent

import (
	"net/netip"
	"sync"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
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

func (e *events) tell(t mcrdmav1.WatchResponse_Type, source netip.Addr, g *mcrdmav1.GroupStatus) {
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
