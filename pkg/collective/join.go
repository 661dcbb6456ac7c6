package collective

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/collective/core"
	"github.com/mcrdma/mcrdma/pkg/collective/model"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// spare is how many operations and receives there are besides those of rings, for what ranks know of each other.
const spare = 8

// Join connects to the other ranks, and returns when all of them have joined: each rank creates a
// group to the others, and is a member of theirs. It also measures what the model needs. The caller
// closes the client. The error wraps one of package mcrdma's, for example ErrUnreachable if a rank
// has not started within Config.Wait, or is ctx's.
func Join(ctx context.Context, client *mcrdma.Client, cfg Config) (*Comm, error) {
	cfg.Hosts = slices.Clone(cfg.Hosts)
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := cfg.at(client.Host(), client.Address()); err != nil {
		return nil, err
	}
	l := cfg.layout()
	e := &engine{cfg: cfg, layout: l, peers: make([]*peer, len(cfg.Hosts)), changed: make(chan struct{}), node: core.NewNode(cfg.Rank, len(cfg.Hosts), l)}
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for range cfg.Lanes {
		e.lanes = append(e.lanes, lane{make(chan struct{}, 1), make(chan struct{}, 1)})
	}
	if cfg.Poll > 0 {
		e.device, _ = client.Device().(poller)
	}
	c := &Comm{e: e, group: e.node.Group(), rank: cfg.Rank}
	err := e.alloc(client)
	if err == nil && len(cfg.Hosts) > 1 {
		err = c.connect(ctx, client)
	}
	if err == nil {
		err = c.cause(c.measure(ctx))
	}
	if err != nil {
		now, cancel := context.WithCancel(ctx)
		cancel()
		_ = e.close(now) // what has begun of it is not waited for
		return nil, fmt.Errorf("join %q as rank %d: %w", cfg.Service, cfg.Rank, err)
	}
	return c, nil
}

func (e *engine) alloc(client *mcrdma.Client) (err error) {
	take := func(n int) (m *mcrdma.Memory) {
		if err == nil {
			if m, err = client.Alloc(n); err == nil {
				e.memory = append(e.memory, m)
			}
		}
		return m
	}
	half := e.layout.Half()
	e.all = take(half)
	for id := range e.peers {
		if id != e.cfg.Rank {
			e.peers[id] = &peer{memory: take(core.Paths * half), staging: take(half)}
		}
	}
	return err
}

// cause returns why there is an error: that of the Comm, if there is one.
func (c *Comm) cause(err error) error {
	if lost := c.Err(); err != nil && lost != nil {
		return lost
	}
	return err
}

// connect makes this rank's group, and becomes a member of the others'.
func (c *Comm) connect(ctx context.Context, client *mcrdma.Client) error {
	e := c.e
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	ranks := map[mcrdma.GroupID]int{} // of groups that this rank takes part in
	var refused error                 // the last request that was
	listener, err := client.Listen(ctx, mcrdma.ListenConfig{Service: e.cfg.Service, Accept: func(r *mcrdma.Request) (*mcrdma.Grant, error) {
		mu.Lock()
		defer mu.Unlock()
		id, err := e.cfg.asks(r)
		if err != nil {
			refused = fmt.Errorf("; %s was refused: %w", r.Sender, err)
			return nil, err
		}
		ranks[r.Group] = id
		return &mcrdma.Grant{Regions: []mcrdma.Piece{e.peers[id].memory.All()}, Receives: make([]mcrdma.Piece, e.layout.Lanes*e.layout.Slots+spare), Replenish: true}, nil
	}})
	if err != nil {
		return err
	}
	var accepting sync.WaitGroup
	var failed error
	accepting.Go(func() {
		missing := func(p *peer) bool { return p != nil && (p.member == nil || p.member.Err() != nil) }
		for slices.ContainsFunc(e.peers, missing) {
			m, err := listener.Accept(ctx)
			if err != nil {
				failed = err
				return
			}
			mu.Lock()
			p := e.peers[ranks[m.Info().ID]]
			mu.Unlock()
			if p.member != nil {
				_ = p.member.Close() // of a rank that has begun anew
			}
			e.mu.Lock() // this rank's group may end meanwhile
			p.member = m
			e.mu.Unlock()
		}
	})
	if err = e.create(ctx, client); err != nil {
		cancel()
	} else {
		e.mu.Lock()
		changed := e.changed
		e.mu.Unlock()
		e.wg.Go(e.watch)
		e.wg.Go(e.ask)
		e.wg.Go(func() { // a rank of this group that is lost makes none to this one
			select {
			case <-changed:
				cancel()
			case <-ctx.Done():
			}
		})
	}
	accepting.Wait()
	_ = listener.Close() // that the daemon does not answer in time hinders nothing: further groups are refused here
	if err == nil {
		err = failed
	}
	if err == nil {
		return e.begin()
	}
	err = c.cause(err)
	mu.Lock()
	defer mu.Unlock()
	if refused != nil {
		err = fmt.Errorf("%w%w", err, refused)
	}
	return err
}

func (e *engine) create(ctx context.Context, client *mcrdma.Client) error {
	cfg := mcrdma.GroupConfig{Service: e.cfg.Service, Mode: e.cfg.Mode, Tuning: e.cfg.Tuning, MinSize: 1, Wait: e.cfg.Wait, Depth: e.layout.Lanes*e.layout.Slots + spare,
		Regions: []mcrdma.Region{{Name: e.cfg.regionName(e.cfg.Rank), Length: uint64(core.Paths * e.layout.Half())}}} //nolint:gosec // not negative
	for id, h := range e.cfg.Hosts {
		if id != e.cfg.Rank {
			cfg.Receivers = append(cfg.Receivers, h)
		}
	}
	group, err := client.Create(ctx, cfg)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.group = group
	return err
}

// begin begins to receive, and to follow the other ranks.
func (e *engine) begin() (err error) {
	for id, p := range e.peers {
		if p != nil {
			if p.unicast, err = e.group.Unicast(e.cfg.Hosts[id]); err != nil {
				return err
			}
		}
	}
	for id, p := range e.peers {
		if p == nil {
			continue
		}
		e.wg.Go(func() { e.receive(id) })
		for lane := range e.lanes {
			e.wg.Go(func() { e.follow(id, lane, core.Multicast) })
			e.wg.Go(func() { e.follow(id, lane, core.Unicast) })
		}
	}
	return nil
}

const (
	probes = 16 // how often something is measured; the least counts: all else that happens meanwhile makes it more
	burst  = 8  // WRITEs at a time
)

// measure has the first rank measure the path to the second, and tells all. It is the first operation, so that it returns when all ranks have joined.
func (c *Comm) measure(ctx context.Context) error {
	costs := make([]float64, 4)
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	if c.rank == 0 && c.Size() > 1 {
		if err := c.probe(ctx, costs); err != nil {
			return err
		}
	}
	if err := Broadcast(ctx, c, 0, costs); err != nil {
		return err
	}
	c.costs = model.Params{Message: costs[0], Combine: costs[1], WireByte: costs[2], CombineByte: costs[3]}
	return nil
}

// probe measures how many microseconds an empty WRITE takes one way and each further one, and a byte takes to be sent and to be combined.
func (c *Comm) probe(ctx context.Context, costs []float64) error {
	e, to := c.e, c.e.peers[1]
	at := mcrdma.At{Offset: uint64(e.layout.At(core.Unicast, e.layout.Lanes-1, 0))} //nolint:gosec // a slot in which no message is, as none is under way
	write := func(times, bytes int) (err error) {
		var last *mcrdma.Pending
		for range times {
			if last, err = to.unicast.Post(ctx, mcrdma.Op{At: at, Pieces: []mcrdma.Piece{to.staging.Slice(0, bytes)}}); err != nil {
				return err
			}
		}
		return last.Wait(ctx) // the others are done before
	}
	measure := func(least *float64, times, bytes int) error {
		for {
			begun := time.Now()
			err := write(times, bytes)
			if !errors.Is(err, mcrdma.ErrUnreachable) || to.unicast.Err() != nil || c.Err() != nil {
				shorter(least, begun)
				return err
			} // the connection was lost, and is made again
		}
	}
	trip, several, large, combine := math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)
	block := e.layout.Block
	a, b := make([]float32, block/4), make([]float32, block/4)
	for range probes {
		if err := errors.Join(measure(&trip, 1, 0), measure(&several, burst, 0), measure(&large, 1, block)); err != nil {
			return err
		}
		begun := time.Now()
		Sum(a, b)
		shorter(&combine, begun)
	}
	costs[0], costs[1] = trip/2, max(0, several-trip)/(burst-1)
	costs[2], costs[3] = max(0, large-trip)/float64(block), combine/float64(block)
	return nil
}

// shorter sets what is the least so far to the microseconds since then, if they are fewer.
func shorter(least *float64, begun time.Time) {
	*least = min(*least, float64(time.Since(begun))/float64(time.Microsecond))
}
