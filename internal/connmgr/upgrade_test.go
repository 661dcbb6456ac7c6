package connmgr

import (
	"net/netip"
	"testing"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/store"
)

// oldGroup is a group in the state of a daemon that knew no views, while a formation was being made.
const oldGroup = `{"ID":"10.0.0.1/7","Spec":{"Service":"s","Program":"p","Mode":1,"MinSize":2,"DSCP":0,"MTU":1024,"Regions":[{"Name":"a","Length":8,
"RKey":1,"VA":2}],"Algorithm":"","Transport":"","Typical":0,"CNPGap":0},"User":{"Token":"t","UID":1,"PID":2,"Program":"p"},
"Created":"2026-01-02T03:04:05Z","Form":{"N":1,"MCID":8388609,"PSN":5,"Path":1,"Why":["w"],"Receivers":[{"Addr":"10.0.0.2","Host":"h2","QPN":3,
"Regions":[{"RKey":4,"VA":5}],"Bootstrap":"","Transport":"","Have":0,"Rack":0}],"First":"10.0.0.2","Have":0,"Sender":{"QPN":6,"Bootstrap":"","Sent":0},
"Transient":false},"Forming":{"N":2,"MCID":8388610,"Candidates":["10.0.0.2"]},"Last":2,
"Departures":[{"Addr":"10.0.0.3","Host":"h3","Why":"gone","Since":9,"Clock":"c"}]}`

// TestOldState: the state of the release before this one can be read.
func TestOldState(t *testing.T) {
	var r groupRecord
	if err := store.Decode([]byte(oldGroup), &r); err != nil {
		t.Fatal(err)
	}
	if f := r.Form; f.N != 1 || f.MCID != 8388609 || f.Path != mcrdmav1.Path_PATH_SWITCH || f.Receivers[0].Regions[0].VA != 5 || f.Sender.QPN != 6 ||
		r.Forming.MCID != 8388610 || r.Last != 2 || r.Departures[0].Since != 9 || r.ID != (groupID{netip.MustParseAddr("10.0.0.1"), 7}) || r.Spec.MinSize != 2 {
		t.Errorf("%+v", r)
	}
}
