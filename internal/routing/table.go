package routing

import (
	"context"
	"net/netip"
	"sync"
)

// A Table holds routes and neighbors and notifies watchers of changes. Sources embed and fill it;
// it implements most of [Source] for them. The zero value is empty and ready for use. It is safe
// for concurrent use, and no method waits for a watcher.
type Table struct {
	mu        sync.RWMutex
	routes    map[netip.Prefix]Hops
	lengths   [2][129]int // number of prefixes of each length; IPv4, IPv6
	neighbors map[NeighborKey]MAC
	watches   map[*Watch]struct{}
	closed    bool
}

var _ Source = (*Table)(nil)

// Lookup implements [Source].
func (t *Table) Lookup(dst netip.Addr) (Route, bool) {
	dst = dst.Unmap().WithZone("")
	if !dst.IsValid() {
		return Route{}, false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	lengths := &t.lengths[family(dst)]
	for bits := dst.BitLen(); bits >= 0; bits-- {
		if lengths[bits] == 0 {
			continue
		}
		p, _ := dst.Prefix(bits) // bits is in range
		if hops, ok := t.routes[p]; ok {
			return Route{p, hops}, true
		}
	}
	return Route{}, false
}

// Routes returns all routes, in the order of their prefixes.
func (t *Table) Routes() []Route {
	t.mu.RLock()
	defer t.mu.RUnlock()
	d := Delta{Routes: make([]Route, 0, len(t.routes))}
	for p, hops := range t.routes {
		d.Routes = append(d.Routes, Route{p, hops})
	}
	d.sort()
	return d.Routes
}

// Neighbor returns the MAC address of a neighbor, and whether it is known.
func (t *Table) Neighbor(k NeighborKey) (MAC, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	m, ok := t.neighbors[k]
	return m, ok
}

// Watch implements [Source].
func (t *Table) Watch() *Watch {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := &Watch{t: t, wake: make(chan struct{}, 1), first: true,
		routes: map[netip.Prefix]routeThen{}, neighbors: map[NeighborKey]MAC{}}
	for p := range t.routes {
		w.routes[p] = routeThen{}
	}
	for k := range t.neighbors {
		w.neighbors[k] = MAC{}
	}
	if t.watches == nil {
		t.watches = map[*Watch]struct{}{}
	}
	t.watches[w] = struct{}{}
	return w
}

// Close implements [Source]: it ends all watches. The table can still be read.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for w := range t.watches {
		w.notify()
	}
	return nil
}

// Apply applies a change. It masks prefixes, normalizes sets, treats neighbors without a MAC
// address as lost, and ignores routes with an invalid prefix. Watchers are only notified of actual
// changes.
func (t *Table) Apply(d Delta) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.apply(d)
}

func (t *Table) apply(d Delta) {
	for _, r := range d.Routes {
		if r.Prefix.IsValid() {
			t.setRoute(normal(r.Prefix), NewHops(r.Hops...), true)
		}
	}
	for _, p := range d.Withdrawn {
		if p.IsValid() {
			t.setRoute(normal(p), nil, false)
		}
	}
	for _, n := range d.Neighbors {
		t.setNeighbor(n.NeighborKey, n.MAC)
	}
	for _, k := range d.Lost {
		t.setNeighbor(k, MAC{})
	}
	t.notify()
}

// Replace replaces the whole content of the table.
func (t *Table) Replace(routes []Route, neighbors []Neighbor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := Delta{Routes: routes, Neighbors: neighbors}
	keepRoutes := make(map[netip.Prefix]bool, len(routes))
	for _, r := range routes {
		keepRoutes[normal(r.Prefix)] = true
	}
	keepNeighbors := make(map[NeighborKey]bool, len(neighbors))
	for _, n := range neighbors {
		keepNeighbors[n.NeighborKey] = true
	}
	for p := range t.routes {
		if !keepRoutes[p] {
			d.Withdrawn = append(d.Withdrawn, p)
		}
	}
	for k := range t.neighbors {
		if !keepNeighbors[k] {
			d.Lost = append(d.Lost, k)
		}
	}
	t.apply(d)
}

func (t *Table) setRoute(p netip.Prefix, hops Hops, have bool) {
	old, had := t.routes[p]
	if had == have && old.Equal(hops) {
		return
	}
	for w := range t.watches {
		if _, ok := w.routes[p]; !ok {
			w.routes[p] = routeThen{old, had}
		}
	}
	count := &t.lengths[family(p.Addr())][p.Bits()]
	if !have {
		*count--
		delete(t.routes, p)
		return
	}
	if !had {
		*count++
	}
	if t.routes == nil {
		t.routes = map[netip.Prefix]Hops{}
	}
	t.routes[p] = hops
}

func (t *Table) setNeighbor(k NeighborKey, m MAC) {
	old := t.neighbors[k]
	if old == m {
		return
	}
	for w := range t.watches {
		if _, ok := w.neighbors[k]; !ok {
			w.neighbors[k] = old
		}
	}
	if m == (MAC{}) {
		delete(t.neighbors, k)
		return
	}
	if t.neighbors == nil {
		t.neighbors = map[NeighborKey]MAC{}
	}
	t.neighbors[k] = m
}

func (t *Table) notify() {
	for w := range t.watches {
		if len(w.routes)+len(w.neighbors) > 0 {
			w.notify()
		}
	}
}

func (w *Watch) notify() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// fetch returns what is new for w, and whether there is anything.
func (t *Table) fetch(w *Watch) (Delta, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.watches[w]; !ok || t.closed {
		return Delta{}, false, ErrClosed
	}
	var d Delta
	for p, then := range w.routes {
		switch hops, have := t.routes[p]; {
		case !have && then.had:
			d.Withdrawn = append(d.Withdrawn, p)
		case have && !(then.had && then.hops.Equal(hops)):
			d.Routes = append(d.Routes, Route{p, hops})
		}
	}
	for k, then := range w.neighbors {
		switch m := t.neighbors[k]; m {
		case then:
		case MAC{}:
			d.Lost = append(d.Lost, k)
		default:
			d.Neighbors = append(d.Neighbors, Neighbor{k, m})
		}
	}
	clear(w.routes)
	clear(w.neighbors)
	d.sort()
	first := w.first
	w.first = false
	return d, first || !d.Empty(), nil
}

func (t *Table) forget(w *Watch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.watches, w)
	w.notify()
}

// A Watch is one consumer's view of a source. It never blocks the source: changes that the consumer
// has not fetched yet are merged, so the consumer always gets the latest state, and may miss
// changes that undo each other. Only one goroutine at a time may use a Watch.
type Watch struct {
	t     *Table
	wake  chan struct{} // holds a token while there may be something to fetch
	first bool          // the first Delta is still to be returned
	// What may have changed since the last Delta, with the state that the consumer got then.
	routes    map[netip.Prefix]routeThen
	neighbors map[NeighborKey]MAC
}

type routeThen struct {
	hops Hops
	had  bool
}

// Next waits for a change and returns it. The first call returns at once, with the whole state of
// the source, even if it is empty. The error is [ErrClosed], or that of ctx.
func (w *Watch) Next(ctx context.Context) (Delta, error) {
	for {
		d, ok, err := w.t.fetch(w)
		if err != nil || ok {
			return d, err
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return Delta{}, ctx.Err()
		}
	}
}

// Close ends the watch.
func (w *Watch) Close() { w.t.forget(w) }

// normal returns p masked, and as IPv4 if it is IPv4-mapped IPv6.
func normal(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}
