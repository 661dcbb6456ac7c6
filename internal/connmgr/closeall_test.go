package connmgr

import (
	"context"
	"net/netip"
	"testing"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// TestCloseAll: the members of a group that ends with its sender's daemon get that reason.
// Its application, which may close the group as soon as it learns of the end, learns of it
// when it is too late for another reason.
func TestCloseAll(t *testing.T) {
	r := newRig(t, 2)
	member := r.receivers()[0]
	a := r.host(1).app("")
	a.create(a.request())
	m := r.host(1).m
	var g *group
	m.mu.Lock()
	for _, g = range m.groups {
	}
	m.mu.Unlock()
	if err := g.enter(t.Context()); err != nil { // as a caller that closes it would
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- m.CloseAll(context.Background()) }()
	<-g.ctx.Done()
	m.mu.Lock()
	m.tell(g, rerouted, netip.Addr{}, "events come in order")
	m.mu.Unlock()
	a.waitChange(rerouted)
	if a.countChanges(failed) > 0 {
		t.Error("the application hears of it while the group may yet be closed")
	}
	g.leave()
	if err := <-done; err != nil {
		t.Error(err)
	}
	a.waitChange(failed)
	r.until("the member is told", func() bool {
		member.mu.Lock()
		defer member.mu.Unlock()
		return len(member.detached) == 1
	})
	for _, d := range member.detached {
		if d.GetReason() != mcrdmav1.Detached_REASON_SENDER_LOST || d.GetText() != drainText {
			t.Errorf("%v", d)
		}
	}
	r.wantNothing()
}
