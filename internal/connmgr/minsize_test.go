package connmgr

import (
	"fmt"
	"testing"
	"testing/synctest"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// TestDefaultMinSize: of groups of ever more receivers one after the other leaves. By default a group
// goes on with as many copies as Ceph's min_size has, half of them or more, and at least a
// receiver.
func TestDefaultMinSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 7, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		for i, least := range []uint32{1, 2, 2, 3, 3, 4} {
			n := i + 1
			req := a.request()
			req.Receivers = req.Receivers[:n]
			res := a.create(req)
			if res.GetMinSize() != least {
				t.Errorf("%d receivers: min_size %d, want %d", n, res.GetMinSize(), least)
			}
			id := res.GetFormation().GetGroup()
			count := func(what mcrdmav1.GroupChanged_Type) (k int) {
				a.mu.Lock()
				defer a.mu.Unlock()
				for _, c := range a.changes {
					if c.GetGroup().GetNumber() == id.GetNumber() && c.GetType() == what {
						k++
					}
				}
				return k
			}
			for left := n - 1; count(failed) == 0; left-- {
				x := apps[left]
				attach := x.latestAsk().GetAttach()
				if _, err := x.rpc.Leave(t.Context(), &mcrdmav1.LeaveRequest{Token: x.token, Attach: attach}); err != nil {
					t.Fatal(err)
				}
				r.passUntil(fmt.Sprintf("it is noticed, %d are left of %d", left, n), func() bool { return count(failed) > 0 || count(removed) == n-left })
				if lives := left > 0 && uint32(left)+1 >= least; lives != (count(failed) == 0) {
					t.Errorf("%d receivers, %d left: it goes on: %v", n, left, !lives)
				}
			}
			r.wantNothing()
		}
	})
}
