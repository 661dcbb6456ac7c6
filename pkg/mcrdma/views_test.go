package mcrdma

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// newViewRig is a rig whose daemons count views.
func newViewRig(t *testing.T, receivers int, relay bool, cfg GroupConfig) *rig {
	t.Helper()
	w, ds := newWorld(t, receivers+1)
	w.views = true
	return newRigIn(w, ds, relay, cfg)
}

// write writes, and returns the view of the completion.
func (r *rig) write() uint32 {
	r.t.Helper()
	done := make(chan *Op, 1)
	op := &Op{Kind: OpWrite, Pieces: []Piece{r.mem.Slice(0, 10)}, Done: func(op *Op) { done <- op }}
	if err := r.g.Submit(r.t.Context(), op); err != nil {
		r.t.Fatal(err)
	}
	if <-done; op.Err != nil {
		r.t.Fatal(op.Err)
	}
	return op.View
}

// TestViews: the application's hook has each view before a completion carries it, and before
// the daemon is told; what Removed says is how many operations were complete by then.
func TestViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		views, goOn := make(chan View, 9), make(chan error, 9)
		goOn <- nil
		r := newViewRig(t, 3, true, GroupConfig{OnView: func(ctx context.Context, v View) error {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("the hook has no deadline")
			}
			views <- v
			return <-goOn
		}})
		g := r.w.group(r.g.id.wire())
		if v := <-views; v.Number != 1 || v.Formation != 1 || len(v.Members) != 3 || v.Members[0].Address != r.ds[0].address || v.Members[0].Host == "" {
			t.Errorf("%+v", v)
		}
		if n := r.write(); n != 1 {
			t.Errorf("view %d", n)
		}
		r.w.tellView(g, r.ds[1].address, r.ds[2].address)
		v := <-views
		if v.Number != 2 || len(v.Members) != 2 || v.Members[1].Address != r.ds[2].address || v.Members[1].Host == "" {
			t.Errorf("%+v", v)
		}
		for range 3 { // data goes on
			if n := r.write(); n != 1 {
				t.Errorf("view %d while the hook has 2", n)
			}
		}
		if a := r.w.acks(g); len(a) > 0 || r.g.View().Number != 1 || r.g.Info().View != 1 {
			t.Errorf("acknowledged before the hook has returned: %d", a)
		}
		goOn <- nil
		eventually(t, "acknowledged", func() bool { return slices.Equal(r.w.acks(g), []uint32{2}) })
		if v := r.g.View(); v.Number != 2 || len(v.Members) != 2 || v.Members[0].Address != r.ds[1].address {
			t.Errorf("%+v", v)
		}
		if n := r.write(); n != 2 {
			t.Errorf("view %d after the hook", n)
		}
		r.w.changed(g, mcrdmav1.GroupChanged_TYPE_REMOVED, r.ds[0].address, "dead")
		if e := event(t, r.g.Events(), EventRemoved); e.Address != r.ds[0].address || e.Operation != 4 || e.Text != "dead" {
			t.Errorf("%+v", e)
		}
		// A formation's view is shown before its first operation is posted.
		r.w.mu.Lock()
		g.gone[r.ds[0].address] = true
		r.w.mu.Unlock()
		r.w.changed(g, mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
		if v := <-views; v.Number != 3 || v.Formation != 2 || len(v.Members) != 2 {
			t.Errorf("%+v", v)
		}
		done := make(chan uint32, 1)
		go func() { done <- r.write() }()
		select {
		case n := <-done:
			t.Errorf("complete with view %d before the hook has returned", n)
		case <-time.After(time.Second):
		}
		goOn <- nil
		if n := <-done; n != 3 {
			t.Errorf("view %d in the next formation", n)
		}
		close(goOn) // the receivers end first
	})
}

// TestHookFails: a hook that fails, or does not return in time, ends the group; the first
// one ends its creation.
func TestHookFails(t *testing.T) {
	for name, tt := range map[string]struct {
		hook func(ctx context.Context) error
		want error
	}{
		"error": {func(context.Context) error { return errPlay }, errPlay},
		"hangs": {func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Minute)
			return nil
		}, context.DeadlineExceeded},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			var bad atomic.Uint32 // the first view that it fails for
			bad.Store(2)
			cfg := GroupConfig{Tuning: Tuning{ViewTime: time.Second}, OnView: func(ctx context.Context, v View) error {
				if v.Number < bad.Load() {
					return nil
				}
				return tt.hook(ctx)
			}}
			r := newViewRig(t, 2, true, cfg)
			g := r.w.group(r.g.id.wire())
			began := time.Now()
			r.w.tellView(g, r.ds[0].address)
			event(t, r.g.Events(), EventFailed)
			wants(t, "group", r.g.Err(), ErrFailed, "hook for view 2")
			if !errors.Is(r.g.Err(), tt.want) || time.Since(began) > 2*time.Second {
				t.Errorf("after %v: %v", time.Since(began), r.g.Err())
			}
			if a := r.w.acks(g); len(a) > 0 {
				t.Errorf("acknowledged: %d", a)
			}
			bad.Store(1)
			cfg.Service, cfg.Receivers, cfg.Regions = "s", []string{r.ds[0].address}, []Region{{"r", regionSize}}
			_, err := r.c.Create(t.Context(), cfg)
			wants(t, "create", err, tt.want, "hook for view 1")
			time.Sleep(2 * time.Minute) // the late hooks return
		})
	}
}

// TestViewAgain: the acknowledgement of a view was lost with the daemon, which says the view
// again when it is back: the hook is not called again.
func TestViewAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown := make(chan uint32, 9)
		r := newViewRig(t, 2, true, GroupConfig{OnView: func(_ context.Context, v View) error {
			shown <- v.Number
			return nil
		}})
		g := r.w.group(r.g.id.wire())
		r.w.tellView(g, r.ds[1].address)
		eventually(t, "acknowledged", func() bool { return slices.Equal(r.w.acks(g), []uint32{2}) })
		r.src.stop()
		r.w.mu.Lock()
		g.acked = nil
		g.info = &mcrdmav1.FormationInfo{Group: g.id, Formation: 1, View: 2, Path: g.info.GetPath(), Members: g.info.GetMembers()[1:]}
		r.w.mu.Unlock()
		r.src.start()
		event(t, r.g.Events(), EventResumed)
		eventually(t, "acknowledged again", func() bool { return slices.Equal(r.w.acks(g), []uint32{2}) })
		if e := event(t, r.g.Events(), EventRemoved); e.Address != r.ds[0].address {
			t.Errorf("%+v", e)
		}
		if len(shown) != 2 {
			t.Errorf("%d views were shown", len(shown))
		}
	})
}

// TestNoViews: a daemon of an older release counts no views. A group without a hook works
// with it; what a removed receiver has is what was complete when the formation began, if
// switches copy.
func TestNoViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, false, GroupConfig{})
		g := r.w.group(r.g.id.wire())
		for range 3 {
			if n := r.write(); n != 0 {
				t.Errorf("view %d", n)
			}
		}
		r.w.changed(g, mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
		event(t, r.g.Events(), EventReformed)
		r.write()
		r.w.changed(g, mcrdmav1.GroupChanged_TYPE_REMOVED, r.ds[0].address, "dead")
		if e := event(t, r.g.Events(), EventRemoved); e.Operation != 3 {
			t.Errorf("%+v", e)
		}
		if v := r.g.View(); v.Number != 0 || len(v.Members) != 0 || v.Formation != 2 {
			t.Errorf("%+v", v)
		}
		if a := r.w.acks(g); len(a) > 0 {
			t.Errorf("acknowledged: %d", a)
		}
		_, err := r.c.Create(t.Context(), GroupConfig{Service: "s", Receivers: []string{r.ds[0].address}, Regions: []Region{{"r", regionSize}},
			OnView: func(context.Context, View) error { return nil }})
		wants(t, "a hook", err, ErrVersion, "counts no views")
	})
}

// TestTree: the tree follows a formation, and changes with the routes.
func TestTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newViewRig(t, 1, false, GroupConfig{})
		g := r.w.group(r.g.id.wire())
		tell := func(typ mcrdmav1.GroupChanged_Type, formation uint32, tree ...string) {
			r.src.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_GroupChanged{GroupChanged: &mcrdmav1.GroupChanged{
				Group: g.id, Formation: formation, Type: typ, Tree: tree}}})
		}
		tell(mcrdmav1.GroupChanged_TYPE_TREE, 1, "one")
		eventually(t, "the tree is there", func() bool { return slices.Equal(r.g.Info().Tree, []string{"one"}) })
		tell(mcrdmav1.GroupChanged_TYPE_ROUTE, 1, "two", "lines")
		if e := event(t, r.g.Events(), EventRoute); !slices.Equal(r.g.Info().Tree, []string{"two", "lines"}) {
			t.Errorf("%+v, tree %q", e, r.g.Info().Tree)
		}
		tell(mcrdmav1.GroupChanged_TYPE_ROUTE, 0, "old")
		if e := event(t, r.g.Events(), EventRoute); r.g.Info().Tree[0] != "two" {
			t.Errorf("%+v, tree %q", e, r.g.Info().Tree)
		}
	})
}

// TestWhyFailed: the group's error wraps the reason that the daemon says; TYPE_FAILED of an
// older daemon, which says none, means that too few receivers are left.
func TestWhyFailed(t *testing.T) {
	for reason, want := range map[mcrdmav1.Reason]error{mcrdmav1.Reason_REASON_UNSPECIFIED: ErrMinSize, mcrdmav1.Reason_MIN_SIZE: ErrMinSize,
		mcrdmav1.Reason_TIMEOUT: ErrTimeout, 9999: ErrFailed} {
		var l life
		l.changed(&mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_FAILED, Reason: reason, Text: "so"})
		wants(t, reason.String(), l.err, want, "so")
	}
}
