package mcrdma

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// TestAllAtOnce: several submit, the group is formed anew, and it is closed twice, perhaps
// together with the Client, all at once. Each operation that was taken is done once, in the
// order of its submitter; Close returns nil only if all of them succeeded.
func TestAllAtOnce(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		for _, o := range r.rs {
			for range MaxReceives {
				if err := o.m.PostRecv(o.mem.Slice(regionSize, 64)); err != nil {
					t.Fatal(err)
				}
			}
		}
		var taken, done, failed atomic.Int64
		var all, closers sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for w := range 3 {
			last := -1
			all.Go(func() {
				for n := range 300 {
					op := &Op{Kind: Kind((n + w) % 3), Pieces: []Piece{r.mem.Slice(0, 1+n%60)}, Done: func(op *Op) {
						if n != last+1 {
							t.Errorf("operation %d is done after %d", n, last)
						}
						last = n
						if op.Err != nil {
							failed.Add(1)
						}
						done.Add(1)
					}}
					if err := r.g.Submit(ctx, op); errors.Is(err, ErrClosed) || errors.Is(err, context.Canceled) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
					taken.Add(1)
				}
			})
		}
		eventually(t, "submitted", func() bool { return taken.Load() > 20 })
		r.w.changed(r.w.group(r.g.id.wire()), mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
		for _, patience := range []time.Duration{time.Millisecond, time.Second} {
			closers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if err := r.g.Close(ctx); err == nil && failed.Load() > 0 {
					t.Errorf("Close returned nil, and %d operations have failed", failed.Load())
				}
			})
		}
		if len(r.rs)%2 == 0 {
			closers.Go(func() {
				if err := r.c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		cancel()
		closers.Wait()
		all.Wait()
		if taken.Load() != done.Load() {
			t.Errorf("%d operations were taken, and %d are done", taken.Load(), done.Load())
		}
	})
}
