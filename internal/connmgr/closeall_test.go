package connmgr

import (
	"context"
	"testing"
	"testing/synctest"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// TestCloseAll: the members of a group that ends with its sender's daemon get that reason.
// Its application, which may close the group as soon as it learns of the end, learns of it
// when it is too late for another reason.
func TestCloseAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		member := r.receivers()[0]
		a := r.host(1).app("")
		a.create(a.request())
		m := r.host(1).m
		done := make(chan error)
		go func() { done <- m.CloseAll(context.Background()) }()
		a.closeGroup(a.waitChange(failed).GetGroup())
		if err := <-done; err != nil {
			t.Error(err)
		}
		if ok, note := m.Readiness(); ok || note != "the daemon ends" {
			t.Errorf("ready: %v, %s", ok, note)
		}
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
	})
}
