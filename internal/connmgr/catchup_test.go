package connmgr

import (
	"strings"
	"testing"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestCatchUp: while receivers catch up with others, hosts relay, whatever the mode; the
// sender learns what each receiver has, and the next formation is by switches again.
func TestCatchUp(t *testing.T) {
	for _, mode := range []mcrdmav1.Mode{mcrdmav1.Mode_MODE_AUTO, mcrdmav1.Mode_MODE_REQUIRE} {
		testenv.Bubble(t, mode.String(), func(t *testing.T) {
			r := newRig(t, 3, withSwitch)
			apps := r.receivers()
			a := r.host(1).app("")
			req := a.request()
			req.Mode = mode
			f := a.create(req).GetFormation()
			for i, x := range apps {
				x.setAccept(func(req *mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
					answer := willing(req)
					answer.Have = uint64(3 + i)
					if !req.GetRelay() {
						answer.Bootstrap = ""
					}
					return answer
				})
			}
			catchUp := func(req *mcrdmav1.ReformGroupRequest) {
				req.Forming.CatchUp, req.Forming.Sent = true, 9
			}
			f = a.reform(f, catchUp).GetFormation()
			if f.GetPath() != mcrdmav1.Path_PATH_RELAY || f.GetHave() != 3 || !strings.Contains(f.GetWhy()[0], "catch up") || f.GetRelay() == nil {
				t.Errorf("%v", f)
			}
			if m := f.GetMembers(); len(m) != 2 || m[0].GetHave() != 3 || m[1].GetHave() != 4 {
				t.Errorf("%v", m)
			}
			if f = a.reform(f, nil).GetFormation(); f.GetPath() != bySwitch {
				t.Errorf("%v", f)
			}
			_, err := a.rpc.ReformGroup(t.Context(), a.reformRequest(f, func(req *mcrdmav1.ReformGroupRequest) {
				catchUp(req)
				req.Forming.Bootstrap = ""
			}))
			if reason, _, _ := reasonOf(err); reason != "INVALID" {
				t.Errorf("without an address: %v", err)
			}
			a.closeGroup(f.GetGroup())
			r.wantNothing()
			r.close()
		})
	}
}
