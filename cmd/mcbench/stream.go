package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// A stream is a measured group: writes of one size, in one way.
type stream struct {
	way     way
	group   *mcrdma.Group
	layout  layout
	memory  *mcrdma.Memory // the pattern
	depth   int
	timeout time.Duration // without progress
	seq     uint32        // of the next write
	free    chan *slot    // completed operations; as many as the depth
}

// A slot is an operation that is reused.
type slot struct {
	op           mcrdma.Op
	pieces       [1]mcrdma.Piece
	posted, done time.Time
	counts       bool // it is one of the measured ones
}

// A sample is the result of one run.
type sample struct {
	n       int
	took    time.Duration   // from the first write's start to the last one's end
	cpu     time.Duration   // of this process meanwhile
	latency []time.Duration // of each write, until all receivers had it
	ends    []time.Duration // when each completed, from the beginning
	uplink  uint64          // bytes that the sender's cable has carried; 0: not known
}

func newStream(ctx context.Context, client *mcrdma.Client, memory *mcrdma.Memory, o *options, w way, size, depth int) (*stream, error) {
	s := &stream{way: w, layout: layoutOf(size, depth, o.check), memory: memory, depth: depth, timeout: o.timeout, free: make(chan *slot, depth)}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("not within %v", o.timeout))
	defer cancel()
	transport := o.transport
	if w.mode == mcrdma.ModeRequire {
		transport = ""
	}
	var err error
	s.group, err = client.Create(ctx, mcrdma.GroupConfig{Service: o.service, Receivers: o.receivers, Mode: w.mode, Wait: 10 * time.Second, // they may be starting just now
		Depth: depth, Tuning: mcrdma.Tuning{Algorithm: w.algorithm, Transport: transport, TypicalSize: int64(size)},
		MinSize: len(o.receivers) + 1,                                                           // a receiver that leaves ends the measurement
		Regions: []mcrdma.Region{{Name: s.layout.String(), Length: uint64(s.layout.length())}}}) //nolint:gosec // positive
	if err != nil {
		return nil, fmt.Errorf("%s: making the group: %w", w.name, err)
	}
	if info := s.group.Info(); info.Path != w.path {
		return nil, errors.Join(fmt.Errorf("%s: the group's path is %v and should be %v: %v", w.name, info.Path, w.path, info.Why), s.close(ctx))
	}
	for range depth {
		x := &slot{}
		x.op.Done = func(*mcrdma.Op) {
			x.done = time.Now()
			s.free <- x // has space: there are no more slots
		}
		s.free <- x
	}
	return s, nil
}

// parting is the time for a group to end when the process ends.
const parting = 2 * time.Second

// close ends the group; quickly, if ctx has ended.
func (s *stream) close(ctx context.Context) error {
	patience := s.timeout
	if ctx.Err() != nil {
		patience = min(patience, parting)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := s.group.Close(ctx); err != nil {
		return fmt.Errorf("%s: closing the group: %w", s.way.name, err)
	}
	return nil
}

// write starts the next write with a free slot.
func (s *stream) write(ctx context.Context, x *slot) error {
	x.pieces[0] = s.memory.Slice(shift(s.seq), s.layout.size)
	x.op.Kind, x.op.At, x.op.Imm, x.op.Pieces = mcrdma.OpWrite, mcrdma.At{Offset: uint64(s.layout.offset(s.seq))}, 0, x.pieces[:] //nolint:gosec // positive
	if s.layout.check {
		x.op.Kind, x.op.Imm = mcrdma.OpWriteImm, s.seq
	}
	s.seq++
	x.posted = time.Now()
	return s.group.Submit(ctx, &x.op)
}

// run measures n writes, or fewer if limit, unless it is 0, ends before. It reports each completed
// write to progress.
func (s *stream) run(ctx context.Context, n int, limit time.Duration, progress func()) (*sample, error) {
	r := &sample{latency: make([]time.Duration, 0, n), ends: make([]time.Duration, 0, n)}
	w := newWatch(s.timeout)
	defer w.stop()
	cpu, begun := cpuTime(), time.Now()
	take := func() (*slot, error) {
		x, err := w.slot(ctx, s)
		if err == nil && x.counts {
			x.counts = false
			r.latency, r.ends = append(r.latency, x.done.Sub(x.posted)), append(r.ends, x.done.Sub(begun))
			progress()
		}
		return x, err
	}
	for i := range n {
		x, err := take()
		if err != nil {
			return nil, err
		}
		if limit > 0 && i > 0 && time.Since(begun) >= limit {
			s.free <- x
			break
		}
		x.counts = true
		if err := s.write(ctx, x); err != nil {
			return nil, s.explain(ctx, err)
		}
	}
	if err := s.drain(take); err != nil {
		return nil, err
	}
	r.n, r.cpu = len(r.latency), cpuTime()-cpu
	r.took = slices.Max(append(r.ends, 0))
	return r, nil
}

// drain waits until all slots are free.
func (s *stream) drain(take func() (*slot, error)) error {
	var all []*slot
	for range s.depth {
		x, err := take()
		if err != nil {
			return err
		}
		all = append(all, x)
	}
	for _, x := range all {
		s.free <- x
	}
	return nil
}

// verified waits until the receivers have verified everything: a write that consumes a receive
// after as many others as there are receives has to wait for that.
func (s *stream) verified(ctx context.Context) error {
	w := newWatch(s.timeout)
	defer w.stop()
	take := func() (*slot, error) { return w.slot(ctx, s) }
	for range s.layout.receives {
		x, err := take()
		if err != nil {
			return err
		}
		x.pieces[0] = s.memory.Slice(0, 1)
		x.op.Kind, x.op.Imm, x.op.Pieces = mcrdma.OpWriteImm, last, x.pieces[:]
		x.op.At = mcrdma.At{Offset: uint64(s.layout.length() - 1)} //nolint:gosec // positive
		if err := s.group.Submit(ctx, &x.op); err != nil {
			return s.explain(ctx, err)
		}
	}
	return s.drain(take)
}

// explain says why a write failed.
func (s *stream) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.layout.check && errors.Is(err, mcrdma.ErrMinSize) {
		return fmt.Errorf("%s: %w; a receiver whose check fails leaves: the output of its \"mcbench serve\" says what was wrong", s.way.name, err)
	}
	return fmt.Errorf("%s: %w", s.way.name, err)
}

// A watch waits with a time limit.
type watch struct {
	timeout time.Duration
	timer   *time.Timer
}

func newWatch(timeout time.Duration) *watch { return &watch{timeout, time.NewTimer(timeout)} }

func (w *watch) stop() { w.timer.Stop() }

// slot waits for a slot of a stream.
func (w *watch) slot(ctx context.Context, s *stream) (*slot, error) {
	select {
	case x := <-s.free: // avoids the cost of the timer
		return x, s.failed(ctx, x)
	default:
	}
	w.timer.Reset(w.timeout)
	select {
	case x := <-s.free:
		return x, s.failed(ctx, x)
	case <-w.timer.C:
		return nil, fmt.Errorf("%s: no write has been completed for %v; --timeout allows more", s.way.name, w.timeout)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *stream) failed(ctx context.Context, x *slot) error {
	if x.op.Err != nil {
		return s.explain(ctx, x.op.Err)
	}
	return nil
}
