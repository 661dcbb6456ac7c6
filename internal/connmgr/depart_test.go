package connmgr

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/hostclock"
)

// TestDeparture: the sender learns since when a receiver may lack something, even if its
// daemon is killed when the switches are about to go on without that one.
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
		begun := hostclock.Now()
		k.arm(0, true)
		apps[0].end()
		r.until("the daemon is killed", func() bool {
			r.pass(100 * time.Millisecond)
			return k.isDead()
		})
		noted := hostclock.Now()
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
		if list := info.GetDepartures(); len(list) != 1 || list[0].GetAddress() != "127.9.0.2" || list[0].GetSince() < begun || list[0].GetSince() > noted || list[0].GetClock() != hostclock.Name() ||
			!strings.Contains(list[0].GetText(), "ended") {
			t.Errorf("noted between %d and %d: %v", begun, noted, info)
		}
		// And so on.
		begun = hostclock.Now()
		apps[1].end()
		r.until("the switch goes on without", func() bool {
			r.pass(100 * time.Millisecond)
			return r.atSwitch() == "4"
		})
		if e := a.waitChange(removed); e.GetSince() == 0 || e.GetClock() != hostclock.Name() {
			t.Errorf("%v", e)
		}
		if list := a.resumeGroup(f).GetDepartures(); len(list) != 2 || list[1].GetAddress() != "127.9.0.3" || list[1].GetSince() < begun {
			t.Errorf("%v, and the second was not before %d", list, begun)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
		r.close()
	})
}
