package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// A way is one of replicating. All are the same calls of the library.
type way struct {
	name      string
	mode      mcrdma.Mode
	algorithm string
	path      mcrdma.Path // that it has to be
}

var ways = []way{
	{"switch multicast", mcrdma.ModeRequire, "", mcrdma.PathSwitch},
	{"fan-out by the sender", mcrdma.ModeOff, "sequential", mcrdma.PathRelay},
	{"chain of hosts", mcrdma.ModeOff, "chain", mcrdma.PathRelay},
	{"RDMC (binomial pipeline)", mcrdma.ModeOff, "binomial-pipeline", mcrdma.PathRelay},
}

// title is the name as it begins a line.
func (w way) title() string { return strings.ToUpper(w.name[:1]) + w.name[1:] }

// A sender is the application on h1.
type sender struct {
	client *mcrdma.Client
	memory *mcrdma.Memory // the file
	write  int            // bytes
	depth  int
}

// group makes a group for one replication.
func (s *sender) group(ctx context.Context, w way, receivers []string) (*mcrdma.Group, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	size := uint64(len(s.memory.Bytes()))
	g, err := s.client.Create(ctx, mcrdma.GroupConfig{Service: service, Receivers: receivers, Mode: w.mode,
		Regions: []mcrdma.Region{{Name: "file", Length: size}}, Depth: s.depth,
		Tuning: mcrdma.Tuning{Algorithm: w.algorithm, TypicalSize: int64(s.write)}})
	if err != nil {
		return nil, err
	}
	if path := g.Info().Path; path != w.path {
		return nil, errors.Join(fmt.Errorf("the group's path is %v and should be %v: %v", path, w.path, g.Info().Why), closeGroup(g))
	}
	return g, nil
}

// closeGroup ends a group, also if everything else is being ended.
func closeGroup(g *mcrdma.Group) error {
	ctx, cancel := context.WithTimeout(context.Background(), parting)
	defer cancel()
	return g.Close(ctx)
}

// writes is how many writes the file takes.
func (s *sender) writes() int { return (len(s.memory.Bytes()) + s.write - 1) / s.write }

// A course is how writing went.
type course struct {
	took  time.Duration // from the first write until all receivers had the last one
	pause time.Duration // the longest time without a completion
}

// stalled is how long nothing may be completed before that is an error.
const stalled = 60 * time.Second

// replicate writes the file to the receivers' memory, depth writes at a time. At each
// completion it calls done with the write's number of bytes. Once half of the writes
// are submitted, and a quarter is complete, it calls half, if that is not nil.
func (s *sender) replicate(ctx context.Context, g *mcrdma.Group, done func(n int), half func()) (course, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	size, total := len(s.memory.Bytes()), s.writes()
	begun := time.Now()
	t := &tracker{total: total, last: begun, under: make(chan struct{}), ended: make(chan struct{}), moved: make(chan struct{}, 1)}
	if total/4 == 0 {
		close(t.under)
	}
	watched := make(chan struct{})
	defer func() { cancel(nil); <-watched }()
	go func() { defer close(watched); t.watch(ctx, cancel) }()
	for i := range total {
		if i == total/2 && half != nil {
			select {
			case <-t.under:
			case <-ctx.Done():
				return course{}, context.Cause(ctx)
			}
			half()
		}
		off := i * s.write
		n := min(s.write, size-off)
		op := &mcrdma.Op{Kind: mcrdma.OpWrite, At: mcrdma.At{Offset: uint64(off)}, Pieces: []mcrdma.Piece{s.memory.Slice(off, n)},
			Done: func(op *mcrdma.Op) {
				if op.Err == nil {
					done(n)
				}
				t.done(op.Err)
			}}
		if i == total-1 {
			op.Kind = mcrdma.OpWriteImm // tells the receivers that they have the whole file
		}
		if err := g.Submit(ctx, op); err != nil {
			return course{}, fmt.Errorf("write %d of %d: %w", i+1, total, causeOf(ctx, err))
		}
	}
	select {
	case <-t.ended:
	case <-ctx.Done():
		return course{}, fmt.Errorf("writing: %w", context.Cause(ctx))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return course{}, fmt.Errorf("writing: %w", t.err)
	}
	return course{took: t.last.Sub(begun), pause: t.pause}, nil
}

// causeOf is why ctx has ended, if that is why there is err.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// A tracker follows completions.
type tracker struct {
	total int
	under chan struct{} // closed when a quarter is complete
	ended chan struct{} // closed when all writes are complete
	moved chan struct{} // holds a token after each completion

	mu    sync.Mutex
	count int
	last  time.Time
	pause time.Duration
	err   error // the first one
}

func (t *tracker) done(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.pause = max(t.pause, now.Sub(t.last))
	t.last = now
	if t.err == nil {
		t.err = err
	}
	t.count++
	if t.count == t.total/4 {
		close(t.under)
	}
	if t.count == t.total {
		close(t.ended)
	}
	select {
	case t.moved <- struct{}{}:
	default:
	}
}

// watch cancels if nothing moves.
func (t *tracker) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	timer := time.NewTimer(stalled)
	defer timer.Stop()
	for {
		select {
		case <-t.moved:
			timer.Reset(stalled)
		case <-timer.C:
			cancel(fmt.Errorf("no write has been completed for %v", stalled))
		case <-t.ended:
			return
		case <-ctx.Done():
			return
		}
	}
}
