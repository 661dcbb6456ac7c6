package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// A group with this application as the sender.
type group struct {
	g    *mcrdma.Group
	took time.Duration

	mu       sync.Mutex // one work at a time
	mirrors  [][]byte   // the content that every receiver's regions must have
	source   *mcrdma.Memory
	messages messages
	done     uint64 // operations, in all works

	eventsMu sync.Mutex
	events   []orders.Event
}

func (a *app) create(args orders.CreateArgs) (info orders.GroupInfo, err error) {
	c, err := a.session()
	if err != nil {
		return info, err
	}
	ctx, cancel := within(args.Millis, time.Minute)
	defer cancel()
	if args.Cancel > 0 {
		defer time.AfterFunc(time.Duration(args.Cancel)*time.Millisecond, cancel).Stop()
	}
	cfg := mcrdma.GroupConfig{Service: args.Service, Receivers: args.Receivers, MinSize: args.MinSize, Depth: args.Depth, Tuning: mcrdma.Tuning{
		DSCP: args.DSCP, MTU: args.MTU, Algorithm: args.Algorithm, Transport: args.Transport, TypicalSize: args.TypicalSize}}
	if args.Mode != "" {
		if err := cfg.Mode.UnmarshalText([]byte(args.Mode)); err != nil {
			return info, err
		}
	}
	g := &group{messages: newMessages()}
	for i, n := range args.Regions {
		cfg.Regions = append(cfg.Regions, mcrdma.Region{Name: fmt.Sprint("region", i), Length: n})
		if n <= 1<<30 { // more than that must be refused
			g.mirrors = append(g.mirrors, make([]byte, n))
		}
	}
	start := time.Now()
	if g.g, err = c.Create(ctx, cfg); err != nil {
		return info, err
	}
	g.took = time.Since(start)
	go g.watch()
	a.mu.Lock()
	a.groups[args.Name] = g
	a.mu.Unlock()
	return g.info(), nil
}

func (g *group) watch() {
	for e := range g.g.Events() {
		g.eventsMu.Lock()
		g.events = append(g.events, orders.Event{Type: e.Type.String(), Address: e.Address, Host: e.Host, Text: e.Text})
		g.eventsMu.Unlock()
	}
}

func (g *group) info() orders.GroupInfo {
	i := g.g.Info()
	info := orders.GroupInfo{ID: i.ID.String(), Path: i.Path.String(), Why: i.Why, Tree: i.Tree, Formation: i.Formation, MCID: i.MCID,
		MTU: i.MTU, Took: g.took, Posts: i.Stats.Posts, Completions: i.Stats.Completions, Bytes: i.Stats.Bytes}
	for _, m := range i.Members {
		info.Members = append(info.Members, m.Address)
	}
	for _, s := range i.Phases {
		info.Phases = append(info.Phases, orders.Phase{Name: s.Name, Took: s.Took})
	}
	if err := g.g.Err(); err != nil {
		info.Error = err.Error()
	}
	return info
}

func (a *app) group(name string) (*group, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if g := a.groups[name]; g != nil {
		return g, nil
	}
	return nil, fmt.Errorf("no group %q", name)
}

func (a *app) info(args orders.Name) (orders.GroupInfo, error) {
	g, err := a.group(args.Name)
	if err != nil {
		return orders.GroupInfo{}, err
	}
	return g.info(), nil
}

func (a *app) events(args orders.Name) ([]orders.Event, error) {
	g, err := a.group(args.Name)
	if err != nil {
		return nil, err
	}
	g.eventsMu.Lock()
	defer g.eventsMu.Unlock()
	return append([]orders.Event{}, g.events...), nil
}

func (a *app) beyond(args orders.BeyondArgs) (any, error) {
	g, err := a.group(args.Name)
	if err != nil {
		return nil, err
	}
	c, err := a.session()
	if err != nil {
		return nil, err
	}
	m, err := c.Alloc(args.Size)
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(0, 10*time.Second)
	defer cancel()
	return nil, errors.Join(g.g.Write(ctx, mcrdma.At{Offset: args.Offset}, m.All()), m.Close())
}

func (a *app) close(args orders.Name) (any, error) {
	g, err := a.group(args.Name)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	delete(a.groups, args.Name)
	a.mu.Unlock()
	ctx, cancel := within(0, 20*time.Second)
	defer cancel()
	return nil, g.g.Close(ctx)
}

// room is how much larger the source is than the largest operation: operations take their bytes
// from different places in it.
const room = 1 << 20

// prepare makes the source large enough. Its bytes depend only on the seed.
func (g *group) prepare(c *mcrdma.Client, largest int, seed uint64) error {
	if g.source != nil && len(g.source.Bytes()) >= largest+room {
		return nil
	}
	m, err := c.Alloc(largest + room)
	if err != nil {
		return err
	}
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	_, _ = rand.NewChaCha8(key).Read(m.Bytes())
	g.source = m
	return nil
}

var kinds = map[string]mcrdma.Kind{"write": mcrdma.OpWrite, "writeimm": mcrdma.OpWriteImm, "send": mcrdma.OpSend, "sendimm": mcrdma.OpSendImm}

// An operation in flight.
type operation struct {
	op    mcrdma.Op
	start time.Time
	bytes int
}

// A work is the operations of one order.
type work struct {
	*group
	args orders.WorkArgs
	free chan *operation

	mu    sync.Mutex
	took  []time.Duration
	bytes uint64
	err   error
}

func (a *app) work(args orders.WorkArgs) (res orders.WorkResult, err error) {
	g, err := a.group(args.Name)
	if err != nil {
		return res, err
	}
	c, err := a.session()
	if err != nil {
		return res, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if args.Depth < 1 || len(args.Kinds) == 0 || len(args.Sizes) == 0 {
		return res, errors.New("work needs a depth, kinds and sizes")
	}
	if err := g.prepare(c, slices.Max(args.Sizes), args.Seed); err != nil {
		return res, err
	}
	ctx, cancel := within(args.Patience, time.Minute)
	defer cancel()
	w := &work{group: g, args: args, free: make(chan *operation, args.Depth)}
	for range args.Depth {
		o := &operation{}
		o.op.Done = func(*mcrdma.Op) { w.complete(o) }
		w.free <- o
	}
	start := time.Now()
	if err := w.run(ctx, start); err != nil {
		return res, err
	}
	res = orders.WorkResult{Done: len(w.took), Bytes: w.bytes, Took: time.Since(start), Messages: g.messages.sum(), Count: g.messages.count}
	for _, m := range g.mirrors {
		res.Regions = append(res.Regions, digest(m))
	}
	if slices.Sort(w.took); len(w.took) > 0 {
		n := len(w.took)
		res.P50, res.P99, res.Max = w.took[n/2], w.took[min(n-1, n*99/100)], w.took[n-1]
	}
	return res, nil
}

// run submits all, and waits for all.
func (w *work) run(ctx context.Context, start time.Time) error {
	end := time.Duration(w.args.Millis) * time.Millisecond
	for i := 0; (w.args.Count == 0 || i < w.args.Count) && (end == 0 || time.Since(start) < end); i++ {
		o, err := w.next(ctx)
		if err != nil {
			return err
		}
		if err := w.submit(ctx, o, i); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	for range cap(w.free) {
		if _, err := w.next(ctx); err != nil {
			return err
		}
	}
	return nil
}

// next waits for a free operation.
func (w *work) next(ctx context.Context) (*operation, error) {
	select {
	case o := <-w.free:
		w.mu.Lock()
		defer w.mu.Unlock()
		return o, w.err
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		return nil, fmt.Errorf("%d operations are complete: %w; the group: %w", len(w.took), ctx.Err(), w.g.Err())
	}
}

func (w *work) complete(o *operation) {
	w.mu.Lock()
	w.took = append(w.took, time.Since(o.start))
	w.bytes += uint64(o.bytes)
	if w.err == nil && o.op.Err != nil {
		w.err = fmt.Errorf("%v of %d bytes: %w", o.op.Kind, o.bytes, o.op.Err)
	}
	w.mu.Unlock()
	w.free <- o
}

// submit starts operation i: kinds and sizes by turns, bytes from somewhere in the source, to
// somewhere in a region.
func (w *work) submit(ctx context.Context, o *operation, i int) error {
	kind, ok := kinds[w.args.Kinds[i%len(w.args.Kinds)]]
	if !ok {
		return fmt.Errorf("there is no kind %q", w.args.Kinds[i%len(w.args.Kinds)])
	}
	size := w.args.Sizes[i/len(w.args.Kinds)%len(w.args.Sizes)]
	n := w.done
	w.done++
	from := int((n*7919 + w.args.Seed) % room)
	payload := w.source.Bytes()[from : from+size]
	op := &o.op
	op.Kind, op.At, op.Imm, op.Err, o.bytes = kind, mcrdma.At{}, uint32(n*2654435761), nil, size
	op.Pieces = w.pieces(op.Pieces[:0], from, size)
	switch kind {
	case mcrdma.OpWrite, mcrdma.OpWriteImm:
		region := int(n) % len(w.mirrors)
		mirror := w.mirrors[region]
		if size > len(mirror) {
			return fmt.Errorf("a region of %d bytes is too small", len(mirror))
		}
		op.At = mcrdma.At{Region: region, Offset: n * 104729 % uint64(len(mirror)-size+1)}
		copy(mirror[op.At.Offset:], payload)
		if kind == mcrdma.OpWriteImm {
			w.messages.add(kind, size, op.Imm)
		}
	case mcrdma.OpSend:
		w.messages.add(kind, size, 0, payload)
	default:
		w.messages.add(kind, size, op.Imm, payload)
	}
	o.start = time.Now()
	if w.args.Depth > 1 {
		return w.g.Submit(ctx, op)
	}
	op.Err = w.wait(ctx, op)
	w.complete(o)
	return nil
}

// wait is the call that returns when every member has the operation.
func (w *work) wait(ctx context.Context, op *mcrdma.Op) error {
	switch op.Kind {
	case mcrdma.OpWrite:
		return w.g.Write(ctx, op.At, op.Pieces...)
	case mcrdma.OpWriteImm:
		return w.g.WriteImm(ctx, op.At, op.Imm, op.Pieces...)
	case mcrdma.OpSend:
		return w.g.Send(ctx, op.Pieces...)
	default:
		return w.g.SendImm(ctx, op.Imm, op.Pieces...)
	}
}

// pieces splits the payload as in the order.
func (w *work) pieces(list []mcrdma.Piece, from, size int) []mcrdma.Piece {
	n := max(1, min(w.args.Pieces, size))
	for i := range n {
		a, b := size*i/n, size*(i+1)/n
		list = append(list, w.source.Slice(from+a, b-a))
	}
	return list
}
