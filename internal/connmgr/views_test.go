package connmgr

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	machine "github.com/mcrdma/mcrdma/internal/group"
)

const viewed = mcrdmav1.GroupChanged_TYPE_VIEW

// ackView acknowledges a view.
func (a *app) ackView(g *mcrdmav1.GroupID, view uint32) {
	a.r.t.Helper()
	if _, err := a.rpc.AckView(context.Background(), &mcrdmav1.AckViewRequest{Token: a.token, Group: g, View: view}); err != nil {
		a.r.t.Error(err)
	}
}

// TestViews: the switch goes on without a receiver when the application has acknowledged the
// view of those who stay; after a restart of the daemon in between too, and then that view has the same number.
func TestViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		apps := r.receivers()
		r.host(1).views = true
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		if f.GetView() != 1 {
			t.Errorf("%v", f)
		}
		apps[0].end()
		c := a.waitChange(viewed)
		if c.GetView() != 2 || !slices.Equal(c.GetMembers(), []string{"127.9.0.3", "127.9.0.4"}) {
			t.Errorf("%v", c)
		}
		r.pass(time.Second)
		if at := r.atSwitch(); at != "2 3 4" {
			t.Errorf("at the switch before the view is acknowledged: %s", at)
		}
		if err := a.refuses(f.GetGroup(), 9); err != "STALE" {
			t.Errorf("a view that is not there: %s", err)
		}
		r.restart(1)
		a.reopen()
		r.pass(time.Second)
		if at := r.atSwitch(); at != "2 3 4" {
			t.Errorf("at the switch before the application is back: %s", at)
		}
		if next := a.resumeGroup(f); next.GetView() != 2 || len(next.GetMembers()) != 2 {
			t.Errorf("%v", next)
		}
		a.ackView(f.GetGroup(), 2)
		if c := a.waitChange(removed); c.GetHost() != "h2" {
			t.Errorf("%v", c)
		}
		if at := r.atSwitch(); at != "3 4" {
			t.Errorf("at the switch: %s", at)
		}
		a.ackView(f.GetGroup(), 1) // an old one does not matter
		next := a.reform(f, nil).GetFormation()
		if next.GetView() <= 2 {
			t.Errorf("a view comes again: %v", next)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// refuses returns why a view cannot be acknowledged.
func (a *app) refuses(g *mcrdmav1.GroupID, view uint32) string {
	_, err := a.rpc.AckView(context.Background(), &mcrdmav1.AckViewRequest{Token: a.token, Group: g, View: view})
	reason, _, _ := reasonOf(err)
	return reason
}

// TestViewNotAcknowledged: the group of an application that does not acknowledge a view ends.
func TestViewNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		apps := r.receivers()
		r.host(1).views = true
		a := r.host(1).app("")
		a.create(a.request())
		apps[0].end()
		a.waitChange(viewed)
		r.pass(machine.ViewTime + time.Second)
		if c := a.waitChange(failed); c.GetReason() != mcrdmav1.Reason_TIMEOUT || c.GetText() != "the application has not acknowledged view 2 in 5s" {
			t.Errorf("%v", c)
		}
		if a.countChanges(removed) > 0 {
			t.Error("it went on without a receiver")
		}
		r.wantNothing()
	})
}
