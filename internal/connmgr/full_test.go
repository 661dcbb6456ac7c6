package connmgr

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/store"
)

// A disk is a store that can be full. Then, as a store does, it takes nothing more.
type disk struct {
	Store
	full atomic.Bool
}

func (d *disk) Failed() error {
	if d.full.Load() {
		return fmt.Errorf("store: %w: x.db: %w", store.ErrFailed, syscall.ENOSPC)
	}
	return nil
}

func (d *disk) Commit(ctx context.Context, edits ...store.Edit) error {
	if err := d.Failed(); err != nil {
		return err
	}
	return d.Store.Commit(ctx, edits...)
}

// startOnDisk starts a daemon whose disk can be full.
func (r *rig) startOnDisk(i int) *disk {
	d := &disk{}
	r.start(i, func(_ *config.Config, o *Options) {
		open := o.OpenStore
		o.OpenStore = func(ctx context.Context, path string) (Store, error) {
			s, err := open(ctx, path)
			d.Store = s
			return d, err
		}
	})
	return d
}

// wantFull checks that an error says that a host's disk is full, and what to do.
func wantFull(t *testing.T, what string, err error, at string) {
	t.Helper()
	if reason, host, _ := reasonOf(err); reason != "LIMIT" || host != at || status.Code(err) != codes.ResourceExhausted ||
		!strings.Contains(err.Error(), "no space left on device") || !strings.Contains(err.Error(), "make room") {
		t.Errorf("%s: %v", what, err)
	}
}

// TestDiskFull: the disk of the sender's daemon is full. Requests that need the state are
// refused with that reason; no switch goes on without a receiver; what exists goes on, and
// everything works when there is room again.
func TestDiskFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withSwitch)
		r.add(4)
		for i := 2; i <= 4; i++ {
			r.start(i)
		}
		d := r.startOnDisk(1)
		apps := r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		for _, x := range apps {
			x.formation(1)
		}
		d.full.Store(true)
		wantFull(t, "CreateGroup", second(a.rpc.CreateGroup(t.Context(), a.request())), "h1")
		if s, err := a.rpc.GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{}); err != nil || len(s.GetProblems()) != 1 ||
			!strings.Contains(s.GetProblems()[0], "no space left on device") || mcrdmav1.ProblemOf(s.GetProblemKinds(), 0) != mcrdmav1.ProblemKind_PROBLEM_KIND_STATE_FILE {
			t.Errorf("the daemon's problems: %v %v", s.GetProblems(), err)
		}
		r.until("it is undone", func() bool { return apps[1].openMemberships() == 1 && len(r.sw.list()) == 1 })
		apps[0].end()
		if c := a.await(broken); !strings.Contains(c.GetText(), "no space left on device") {
			t.Errorf("%v", c)
		}
		if n := r.sw.called("Update"); n > 0 || r.atSwitch() != "2 3 4" {
			t.Errorf("the switch goes on with %q after %d updates", r.atSwitch(), n)
		}
		if n := a.countChanges(removed); n > 0 {
			t.Errorf("%d receivers were removed", n)
		}
		if list := a.resumeGroup(f).GetDepartures(); len(list) > 0 {
			t.Errorf("departed, though it was not taken out: %v", list)
		}
		wantFull(t, "ReformGroup", second(a.rpc.ReformGroup(t.Context(), a.reformRequest(f, nil))), "h1")
		r.pass(3 * time.Second)
		if got := r.host(1).members(f.GetGroup()); got != "2 3 4" {
			t.Errorf("members %q", got)
		}
		r.restart(1)
		a.reopen()
		if list := a.resumeGroup(f).GetDepartures(); len(list) > 0 {
			t.Errorf("departed, as the state says: %v", list)
		}
		a.await(removed)
		if got := r.atSwitch(); got != "3 4" {
			t.Errorf("the switch has %q", got)
		}
		next := a.reform(f, nil).GetFormation()
		if len(next.GetMembers()) != 2 {
			t.Errorf("%v", next)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// TestDiskFullAtReceiver: the same at a receiver, whose host is named.
func TestDiskFullAtReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		r.add(3)
		r.start(1)
		d := r.startOnDisk(2)
		r.start(3)
		apps := r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		apps[0].formation(1)
		d.full.Store(true)
		wantFull(t, "CreateGroup", second(a.rpc.CreateGroup(t.Context(), a.request())), "h2")
		r.pass(3 * time.Second)
		if got := r.host(1).members(f.GetGroup()); got != "2 3" {
			t.Errorf("the group of before has %q", got)
		}
		if next := a.reform(f, nil).GetFormation(); len(next.GetMembers()) != 1 {
			t.Errorf("%v", next)
		}
		if c := a.waitChange(removed); c.GetHost() != "h2" || !strings.Contains(c.GetText(), "no space left on device") {
			t.Errorf("%v", c)
		}
	})
}
