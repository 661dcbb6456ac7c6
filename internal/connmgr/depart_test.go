package connmgr

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// TestDeparture: the sender learns which receivers are out, and why, even if its daemon is
// killed when the switches are about to go on without one.
func TestDeparture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withSwitch)
		r.add(4)
		for i := 2; i <= 4; i++ {
			r.start(i)
		}
		apps := r.receivers()
		k := r.startKillable(1)
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		k.arm(0, true)
		apps[0].end()
		r.until("the daemon is killed", func() bool {
			r.pass(100 * time.Millisecond)
			return k.isDead()
		})
		if at := r.atSwitch(); at != "2 3 4" {
			t.Errorf("the switch was told before it was noted: %s", at)
		}
		r.host(1).kill()
		r.startKillable(1)
		r.until("the switch goes on without", func() bool { return r.atSwitch() == "3 4" })
		a.reopen()
		var info *mcrdmav1.FormationInfo
		r.until("the daemon knows that", func() bool {
			info = a.resumeGroup(f)
			return len(info.GetMembers()) == 2
		})
		if list := info.GetDepartures(); len(list) != 1 || list[0].GetAddress() != "127.9.0.2" || !strings.Contains(list[0].GetText(), "ended") {
			t.Errorf("%v", info)
		}
		// And so on.
		apps[1].end()
		r.until("the switch goes on without", func() bool {
			r.pass(100 * time.Millisecond)
			return r.atSwitch() == "4"
		})
		if e := a.waitChange(removed); e.GetAddress() != "127.9.0.3" {
			t.Errorf("%v", e)
		}
		if list := a.resumeGroup(f).GetDepartures(); len(list) != 2 || list[1].GetAddress() != "127.9.0.3" {
			t.Errorf("%v", list)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
		r.close()
	})
}
