package connmgr

import (
	"testing"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

func TestCreateBySwitch(t *testing.T) {
	r := newRig(t, 4, withTLS, withSwitch)
	apps := r.receivers()
	a := r.host(1).app("")
	res := a.create(a.request())
	f := res.GetFormation()
	t.Log(f)
	if f.GetPath() != mcrdmav1.Path_PATH_SWITCH {
		t.Fatalf("path %v: %v", f.GetPath(), f.GetWhy())
	}
	for _, x := range apps {
		r.until("formed", func() bool { x.mu.Lock(); defer x.mu.Unlock(); return len(x.formed) == 1 })
	}
	if _, err := a.rpc.CloseGroup(t.Context(), &mcrdmav1.CloseGroupRequest{Token: a.token, Group: f.GetGroup()}); err != nil {
		t.Fatal(err)
	}
	r.wantNothing()
}
