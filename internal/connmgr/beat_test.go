package connmgr

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// TestBeatLists: a beat names groups only if the host does not know them by the number of their list:
// after a change, and after a restart of either daemon.
func TestBeatLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4)
		apps := r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		h := r.host(1)
		named := func(what string, most int) {
			t.Helper()
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.full == 0 || h.full > most || h.short < 5 {
				t.Errorf("%s: %d beats named groups, and %d did not", what, h.full, h.short)
			}
			h.full, h.short = 0, 0
		}
		r.pass(time.Second)
		named("a new group", 3)
		r.restart(2)
		apps[0].reopen()
		for attach := range apps[0].attached {
			req := &mcrdmav1.ResumeMemberRequest{Token: apps[0].token, Attach: attach, Group: f.GetGroup(), Formation: 1}
			if _, err := apps[0].rpc.ResumeMember(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		r.pass(time.Second)
		named("a receiver's daemon has restarted", 2)
		r.pass(time.Minute) // more than a lease
		if got := h.members(f.GetGroup()); got != "2 3 4" || a.countChanges(removed) > 0 {
			t.Errorf("members %q", got)
		}
		h.mu.Lock()
		h.full, h.short = 0, 0
		h.mu.Unlock()
		apps[1].end()
		a.await(broken)
		a.reform(f, nil)
		r.pass(time.Second)
		named("a receiver has gone", 6)
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// TestBeatListOfAnother: a list is of one host, in one run of its daemon.
func TestBeatListOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withTLS)
		b := r.host(2).receiver()
		own := r.host(2).caller(r.host(1).files)
		if _, err := own.Prepare(t.Context(), prepareRequest()); err != nil {
			t.Fatal(err)
		}
		beat := func(files identity.Files, req *mcrdmav1.BeatRequest) *mcrdmav1.BeatResponse {
			t.Helper()
			res, err := r.host(2).caller(files).Beat(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		full := &mcrdmav1.BeatRequest{Boot: 3, List: 7, Groups: []*mcrdmav1.Heartbeat{{Group: prepareRequest().GetGroup(), Formation: 1}}}
		short := &mcrdmav1.BeatRequest{Boot: 3, List: 7}
		if beat(r.host(1).files, full).GetList() != 7 || beat(r.host(1).files, short).GetList() != 7 {
			t.Error("the list is not known")
		}
		// Another host of that name has a certificate for other addresses.
		namesake := r.ca.Issue(identity.Identity{Role: identity.Host, Name: "h1", Addrs: []netip.Addr{hostAddr(3)}})
		for name, res := range map[string]*mcrdmav1.BeatResponse{
			"another host": beat(r.host(3).files, short), "a namesake": beat(namesake, short),
			"another run":    beat(r.host(1).files, &mcrdmav1.BeatRequest{Boot: 4, List: 7}),
			"another number": beat(r.host(1).files, &mcrdmav1.BeatRequest{Boot: 3, List: 8}),
		} {
			if res.GetList() != 0 {
				t.Errorf("%s: the list is known", name)
			}
		}
		// What has gone is told by either beat, and then the list is not known any more.
		b.end()
		r.until("it has gone", func() bool { return len(beat(r.host(1).files, short).GetGone()) > 0 })
		for _, req := range []*mcrdmav1.BeatRequest{short, full} {
			if res := beat(r.host(1).files, req); res.GetList() != 0 || len(res.GetGone()) != 1 || res.GetGone()[0].GetAddress() != "127.9.0.2" {
				t.Errorf("%v", res)
			}
		}
		r.wantNothing()
	})
}
