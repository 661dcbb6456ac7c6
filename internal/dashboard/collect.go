package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grouptree"
)

const (
	// Interval is the default time between two looks. Counters are read at each second one.
	Interval = 250 * time.Millisecond

	findInterval  = 10 * time.Second
	watchAgain    = time.Second
	wantedTime    = 5 * time.Second // how long a group is measured each time after a page has asked for it
	maxWanted     = 64
	measureOthers = 16 // groups of each agent that are measured each time besides
	atOnce        = 8
)

// An Agent is one that is asked. Its calls must end by themselves.
type Agent struct {
	Address string
	Name    string // of the switch, as others call it; empty: not known
	grouptree.Agent
}

// A Daemon is asked for the groups of its host's applications. Its calls must end by
// themselves.
type Daemon struct {
	Socket string
	mcrdmav1.ApplicationsClient
}

// Options are what a dashboard shows.
type Options struct {
	// Find returns the agents that are known now; it is called again and again. Agents that
	// it leaves out later stay on the page.
	Find     func(context.Context) ([]Agent, error)
	Daemons  []Daemon
	Interval time.Duration // between two looks; 0: Interval
	// Stale is how old an answer is before its part of the page turns gray; 0: three
	// intervals, and at least 1.5 s.
	Stale time.Duration
	// Meaning explains a cell of a switch's counters of drops; usual: it is how merging works.
	Meaning func(cell string) (text string, usual bool)
}

// A Dashboard collects what agents say, and serves the page. It may be used by several
// goroutines.
type Dashboard struct {
	options Options
	secret  string

	streams    atomic.Int32 // open pages
	collecting singleflight.Group

	mu      sync.Mutex
	state   *state
	agents  map[string]Agent
	wanted  map[string]time.Time // groups, and until when
	changed chan struct{}        // closed when the page has to be told
	trees   map[string]treeView  // of groups that pages have asked for
}

// New returns a dashboard that knows nothing yet. Only who knows the secret may see the page.
func New(secret string, o Options) *Dashboard {
	o.Interval = cmp.Or(o.Interval, Interval)
	o.Stale = cmp.Or(o.Stale, max(3*o.Interval, 1500*time.Millisecond))
	return &Dashboard{options: o, secret: secret, state: newState(o.Stale), agents: map[string]Agent{}, wanted: map[string]time.Time{},
		changed: make(chan struct{}), trees: map[string]treeView{}}
}

// Run collects until ctx ends. The error is that of the first Find.
func (d *Dashboard) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	find := func() error {
		list, err := d.options.Find(ctx)
		for _, a := range list {
			if d.know(a) {
				all.Go(func() { d.every(ctx, d.options.Interval, func() { d.look(ctx, a) }) })
				all.Go(func() { d.every(ctx, 2*d.options.Interval, func() { d.count(ctx, a) }) })
				all.Go(func() { d.every(ctx, watchAgain, func() { d.watch(ctx, a) }) })
			}
		}
		return err
	}
	if err := find(); err != nil {
		return err
	}
	for _, x := range d.options.Daemons {
		all.Go(func() { d.every(ctx, d.options.Interval, func() { d.ask(ctx, x) }) })
	}
	all.Go(func() {
		d.every(ctx, d.options.Interval, func() { d.do(func(s *state) { s.expire(time.Now()) }) })
	})
	d.every(ctx, findInterval, func() { _ = find() }) // those that are known are seen not to answer
	return nil
}

// every calls f at once, and then at each interval until ctx ends.
func (d *Dashboard) every(ctx context.Context, interval time.Duration, f func()) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for ctx.Err() == nil {
		f()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

// do changes the state, and tells the pages if that changed what they show.
func (d *Dashboard) do(f func(s *state)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.state.version
	f(d.state)
	if d.state.version != before {
		close(d.changed)
		d.changed = make(chan struct{})
	}
}

// know says whether an agent is new.
func (d *Dashboard) know(a Agent) (fresh bool) {
	d.do(func(s *state) {
		if _, old := d.agents[a.Address]; !old {
			d.agents[a.Address], fresh = a, true
			s.know(a.Address, a.Name)
		}
	})
	return fresh
}

// look asks an agent for its status.
func (d *Dashboard) look(ctx context.Context, a Agent) {
	r, err := a.Status.GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
	if ctx.Err() == nil {
		d.do(func(s *state) { s.status(a.Address, time.Now(), r, err) })
	}
}

// count asks an agent for its counters, and for those of some groups. It takes longer than a
// look, and does not delay the next one.
func (d *Dashboard) count(ctx context.Context, a Agent) {
	gray := false
	d.do(func(s *state) { gray = s.agents[a.Address].gray })
	if gray {
		return
	}
	if c, err := a.Status.GetCounters(ctx, &mcrdmav1.GetCountersRequest{}); err == nil { // else they grow old
		d.do(func(s *state) { s.counters(a.Address, time.Now(), c.GetCounters()) })
	}
	var keys []string
	d.do(func(s *state) { keys = s.turns(a.Address, d.wants(time.Now()), measureOthers) })
	var all errgroup.Group
	all.SetLimit(atOnce)
	for _, k := range keys {
		all.Go(func() error {
			d.measure(ctx, a, k)
			return nil // what can't be read grows old
		})
	}
	_ = all.Wait()
}

// measure reads the counters of a group. If that fails, those that are known grow old.
func (d *Dashboard) measure(ctx context.Context, a Agent, key string) {
	k, err := grouptree.ParseKey(key)
	if err != nil {
		return // the agent has told what no group is called
	}
	if g, err := a.Groups.Get(ctx, &mcrdmav1.GetRequest{Key: k.Proto(), Counters: true, Acked: true}); err == nil {
		d.do(func(s *state) { s.measured(a.Address, time.Now(), g.GetGroup()) })
	}
}

// wants are the groups that pages have asked for lately. It is called with mu.
func (d *Dashboard) wants(now time.Time) map[string]bool {
	out := map[string]bool{}
	for k, until := range d.wanted {
		if until.Before(now) {
			delete(d.wanted, k)
		} else {
			out[k] = true
		}
	}
	return out
}

// want has a group measured at each look for a while. It is called with mu.
func (d *Dashboard) want(key string) {
	if _, known := d.wanted[key]; known || len(d.wanted) < maxWanted {
		d.wanted[key] = time.Now().Add(wantedTime)
	}
}

// watch follows an agent's groups until the stream breaks.
func (d *Dashboard) watch(ctx context.Context, a Agent) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := a.Groups.Watch(ctx, &mcrdmav1.WatchRequest{})
	if err != nil {
		return
	}
	synced, first := false, []*mcrdmav1.GroupStatus{}
	for {
		w, err := stream.Recv()
		switch {
		case err != nil || w.GetType() == mcrdmav1.WatchResponse_TYPE_LOST:
			return
		case w.GetType() == mcrdmav1.WatchResponse_TYPE_SYNCED:
			synced = true
			d.do(func(s *state) { s.sync(a.Address, time.Now(), first) })
			first = nil
		case synced:
			d.do(func(s *state) { s.group(a.Address, time.Now(), w) })
		case len(first) <= maxGroups:
			first = append(first, w.GetGroup())
		}
	}
}

// ask asks a daemon once.
func (d *Dashboard) ask(ctx context.Context, x Daemon) {
	r, err := x.ListGroups(ctx, &mcrdmav1.ListGroupsRequest{})
	if ctx.Err() == nil {
		d.do(func(s *state) { s.daemon(x.Socket, time.Now(), r.GetGroups(), err) })
	}
}

// A treeView is a group's tree as it was collected last.
type treeView struct {
	at   time.Time
	tree *grouptree.Tree
	err  error
}

// tree collects a group's tree, once for all that ask meanwhile. If it cannot be collected now, the
// last one is returned with an error.
func (d *Dashboard) tree(ctx context.Context, key grouptree.Key) treeView {
	k := idOf(key.Proto())
	v, _, _ := d.collecting.Do(k, func() (any, error) { return d.collect(ctx, k, key), nil })
	return v.(treeView)
}

// collect collects a group's tree, or returns one that is younger than an interval.
func (d *Dashboard) collect(ctx context.Context, k string, key grouptree.Key) treeView {
	d.mu.Lock()
	old := d.trees[k]
	if old.tree != nil && time.Since(old.at) < d.options.Interval {
		d.mu.Unlock()
		return old
	}
	first := slices.Sorted(maps.Keys(d.agents))
	if a, _ := d.state.group1(k); a != nil {
		first = []string{a.address}
	}
	directory := map[string]string{}
	for _, a := range d.state.agents {
		directory[a.name] = a.address
	}
	d.mu.Unlock()

	t, err := grouptree.Collect(ctx, d.source, key, first, directory, grouptree.Limits{})
	if err != nil {
		return treeView{old.at, old.tree, err}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.trees[k]; !known && len(d.trees) >= maxWanted { // any will do: an open page asks again
		for other := range d.trees {
			delete(d.trees, other)
			break
		}
	}
	d.trees[k] = treeView{at: time.Now(), tree: t}
	return d.trees[k]
}

// source finds an agent by its address, among those that are known.
func (d *Dashboard) source(address string) (grouptree.Agent, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, ok := d.agents[address]
	if !ok {
		return grouptree.Agent{}, fmt.Errorf("agent %s: %w", address, errNotFound)
	}
	return a.Agent, nil
}

var errNotFound = errors.New("it was not found among those that are looked at")
