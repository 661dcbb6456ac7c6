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
	"github.com/mcrdma/mcrdma/tests/chaos/history"
	"github.com/mcrdma/mcrdma/tests/chaos/orders"
	"github.com/mcrdma/mcrdma/tests/chaos/plan"
)

// A sender is this application's part in a group to which it sends.
type sender struct {
	plan    plan.Group
	names   map[string]string // of hosts, by address
	spare   string            // address; empty: none, or it was added
	g       *mcrdma.Group
	journal *journal
	slots   chan *slot
	ctx     context.Context // of the work
	stop    context.CancelFunc
	done    chan struct{}  // closed when no more is submitted
	refused *history.Entry // the operation that could not be submitted; known when done
	events  sync.WaitGroup
}

// A slot is an operation in flight, with its bytes.
type slot struct {
	op  mcrdma.Op
	n   uint64
	mem *mcrdma.Memory
}

func (a *app) create(args orders.CreateArgs) (res orders.CreateResult, err error) {
	j, err := a.journal(orders.SenderFile(args.Group.Name))
	if err != nil {
		return res, err
	}
	s := &sender{plan: args.Group, names: map[string]string{}, journal: j, slots: make(chan *slot, args.Group.Depth), done: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(context.Background())
	cfg := mcrdma.GroupConfig{Service: s.plan.Name, MinSize: s.plan.MinSize, Depth: s.plan.Depth, OnView: s.viewed,
		Tuning: mcrdma.Tuning{Transport: s.plan.Transport}}
	if err := cfg.Mode.UnmarshalText([]byte(s.plan.Mode)); err != nil {
		return res, err
	}
	for _, host := range s.plan.Receivers {
		cfg.Receivers = append(cfg.Receivers, args.Addresses[host])
		s.names[args.Addresses[host]] = host
	}
	if s.plan.Spare != "" {
		s.spare = args.Addresses[s.plan.Spare]
		s.names[s.spare] = s.plan.Spare
	}
	for _, n := range s.plan.Regions {
		cfg.Regions = append(cfg.Regions, mcrdma.Region{Length: uint64(n)}) //nolint:gosec // small
	}
	for range s.plan.Depth {
		x := &slot{}
		if x.mem, err = a.client.Alloc(s.plan.Largest); err != nil {
			return res, err
		}
		x.op.Done = func(op *mcrdma.Op) { s.completed(x, op.Err) }
		s.slots <- x
	}
	ctx, cancel := wait(20_000)
	defer cancel()
	if s.g, err = a.client.Create(ctx, cfg); err != nil {
		return res, err
	}
	info := s.g.Info()
	j.put(history.Entry{What: history.Created, Members: s.plan.Receivers, MinSize: info.MinSize, Regions: s.plan.Regions,
		Text: fmt.Sprintf("%v by %v: %q", info.ID, info.Path, info.Why)})
	s.events.Go(s.watch)
	a.mu.Lock()
	a.senders[s.plan.Name] = s
	a.mu.Unlock()
	return orders.CreateResult{Path: info.Path.String(), Why: info.Why}, nil
}

// watch records events.
func (s *sender) watch() {
	for e := range s.g.Events() {
		entry := history.Entry{What: history.Note, Text: e.String()}
		if e.Type == mcrdma.EventRemoved {
			entry.What, entry.Member, entry.N = history.Removed, s.names[e.Address], e.Operation
		}
		if e.Type == mcrdma.EventAdded {
			entry.What, entry.Member, entry.N = history.Added, s.names[e.Address], e.Operation
		}
		s.journal.put(entry)
		if e.Type == mcrdma.EventRemoved && s.spare != "" {
			spare := s.spare
			s.spare = ""
			s.events.Go(func() {
				_, err := s.g.Add(context.Background(), spare)
				s.journal.put(history.Entry{What: history.Note, Text: fmt.Sprintf("to add %s: %v", s.names[spare], err)})
			})
		}
	}
}

// viewed records a view before operations complete in it.
func (s *sender) viewed(_ context.Context, v mcrdma.View) error {
	e := history.Entry{What: history.View, View: v.Number, Text: fmt.Sprintf("formation %d", v.Formation)}
	for _, m := range v.Members {
		e.Members = append(e.Members, s.names[m.Address])
	}
	s.journal.put(e)
	return nil
}

func (s *sender) completed(x *slot, err error) {
	e := history.Entry{What: history.Done, N: x.n, View: x.op.View}
	if err != nil {
		e.Text = err.Error()
	}
	s.journal.put(e)
	s.slots <- x
}

func (a *app) sender(name string) (*sender, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.senders[name]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("there is no group %q", name)
}

func (a *app) work(args orders.Name) (any, error) {
	s, err := a.sender(args.Name)
	if err != nil {
		return nil, err
	}
	go s.submitAll()
	return nil, nil
}

// submitAll submits until it is stopped, or the group fails.
func (s *sender) submitAll() {
	defer close(s.done)
	rng := rand.New(rand.NewPCG(s.plan.Key, 1)) //nolint:gosec // the same for a seed
	for n := uint64(0); ; n++ {
		select {
		case <-s.ctx.Done():
			return
		case x := <-s.slots:
			if !s.submit(rng, x, n) {
				s.slots <- x
				return
			}
		}
		if s.plan.Pause > 0 {
			select {
			case <-s.ctx.Done():
			case <-time.After(time.Duration(rng.Int64N(int64(s.plan.Pause)))):
			}
		}
	}
}

var kinds = []string{history.Write, history.WriteImm, history.Send, history.SendImm} // as mcrdma counts them

// submit draws an operation and submits it.
func (s *sender) submit(rng *rand.Rand, x *slot, n uint64) bool {
	e := history.Entry{What: history.Submit, N: n, Kind: s.plan.Kinds[rng.IntN(len(s.plan.Kinds))]}
	// Small operations as often as large ones, for any size.
	e.Size = min(s.plan.Largest, 1+rng.IntN(1<<rng.IntN(21)))
	if rng.IntN(50) == 0 {
		e.Size = s.plan.Largest
	}
	x.n = n
	x.op.Kind = mcrdma.Kind(slices.Index(kinds, e.Kind)) //nolint:gosec // of four
	x.op.At, x.op.Imm, x.op.Err = mcrdma.At{}, 0, nil
	if e.Kind == history.Write || e.Kind == history.WriteImm {
		e.Region = rng.IntN(len(s.plan.Regions))
		e.Offset = rng.IntN(s.plan.Regions[e.Region] - e.Size + 1)
		x.op.At = mcrdma.At{Region: e.Region, Offset: uint64(e.Offset)} //nolint:gosec // not negative
	}
	if e.Kind == history.WriteImm || e.Kind == history.SendImm {
		e.Imm = rng.Uint32()
		x.op.Imm = e.Imm
	}
	history.Fill(x.mem.Bytes()[:e.Size], s.plan.Key, n)
	x.op.Pieces = append(x.op.Pieces[:0], x.mem.Slice(0, e.Size))
	s.journal.put(e)
	// The submission does not end with the work: it has its own timeout.
	if err := s.g.Submit(context.Background(), &x.op); err != nil {
		s.refused = &history.Entry{What: history.Done, N: n, Text: "not submitted: " + err.Error()}
		return false
	}
	return true
}

// finish stops submitting, waits for all operations, and closes the group.
func (a *app) finish(args orders.FinishArgs) (any, error) {
	s, err := a.sender(args.Name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := wait(args.Millis)
	defer cancel()
	s.stop()
	select {
	case <-s.done:
	case <-ctx.Done():
		return nil, errors.New("a submission does not end")
	}
	for range cap(s.slots) {
		select {
		case <-s.slots:
		case <-ctx.Done():
			return nil, fmt.Errorf("operations do not end; group: %w", s.g.Err())
		}
	}
	if s.refused != nil { // after the ends of the operations before it
		s.journal.put(*s.refused)
	}
	err = s.g.Close(ctx)
	s.events.Wait()
	text := "closed"
	if err != nil {
		text = err.Error()
	}
	s.journal.put(history.Entry{What: history.Over, Text: text})
	return nil, nil
}
