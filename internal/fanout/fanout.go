// Package fanout delivers events to watchers, none of which can delay the others.
package fanout

import "sync"

// Queue is how many events a watcher may lag.
const Queue = 1024

// A Fanout tells events to watchers. The zero value has none.
type Fanout[E any] struct {
	mu       sync.Mutex
	watchers map[*Watcher[E]]struct{}
}

// A Watcher is told events.
type Watcher[E any] struct {
	// Events is closed when the watcher was too slow.
	Events chan E
	sees   func(E) bool
}

// Tell tells an event to all watchers that may see it. It does not block.
func (f *Fanout[E]) Tell(e E) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watchers {
		if !w.sees(e) {
			continue
		}
		select {
		case w.Events <- e:
		default:
			delete(f.watchers, w)
			close(w.Events)
		}
	}
}

// Watch begins to watch the events that sees is true for, until end is called.
func (f *Fanout[E]) Watch(sees func(E) bool) (w *Watcher[E], end func()) {
	w = &Watcher[E]{make(chan E, Queue), sees}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers == nil {
		f.watchers = map[*Watcher[E]]struct{}{}
	}
	f.watchers[w] = struct{}{}
	return w, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watchers, w)
	}
}
