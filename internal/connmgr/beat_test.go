package connmgr

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
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

// mutual makes three hosts each of which has a group to the others.
func mutual(t *testing.T, o ...rigOption) (r *rig, apps []*app, groups []*mcrdmav1.FormationInfo) {
	t.Helper()
	r = newRig(t, 3, o...)
	for _, h := range r.hosts {
		apps = append(apps, h.receiver())
	}
	for _, a := range apps {
		groups = append(groups, a.create(a.request()).GetFormation())
	}
	r.pass(time.Second)
	return r, apps, groups
}

// beats are how many each host has sent since the last call.
func (r *rig) beats() (short, full []int) {
	for _, h := range r.hosts {
		h.mu.Lock()
		short, full = append(short, h.short), append(full, h.full)
		h.short, h.full = 0, 0
		h.mu.Unlock()
	}
	return short, full
}

// TestOneBeatsForBoth: of two hosts with receivers of each other's groups one sends beats, and each learns as early as if it
// had sent its own what has become of the other's applications and daemon.
func TestOneBeatsForBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, apps, groups := mutual(t)
		r.beats()
		r.pass(10 * time.Second)
		short, full := r.beats()
		if want := []int{2 * 125, 125, 0}; !slices.Equal(short, want) || !slices.Equal(full, []int{0, 0, 0}) {
			t.Errorf("in 10 s the hosts sent %d beats, and %d that name groups; want %d and none", short, full, want)
		}
		r.pass(time.Minute) // more than a lease
		for i, a := range apps {
			if got := r.host(1 + i).members(groups[i].GetGroup()); len(got) != len("2 3") || a.countChanges(removed) > 0 {
				t.Errorf("host %d: members %q", 1+i, got)
			}
		}
		// The one that beats dies: the others beat themselves, and hear that it is away.
		r.beats()
		r.host(1).kill()
		r.pass(time.Second)
		if short, full := r.beats(); short[1]+full[1] < 2*11 || short[2]+full[2] < 11 {
			t.Errorf("without the first daemon: %d beats, and %d that name groups", short, full)
		}
		for _, i := range []int{2, 3} {
			if got := r.host(i).m.peers.at[hostAddr(1)].err; !failure.Is(got, mcrdmav1.Reason_UNREACHABLE) {
				t.Errorf("host %d: %v", i, got)
			}
		}
	})
}

// TestEndsToldAtOnce: what has become of an application is told at once, whichever of the daemons beats, and in a group that has
// no beats from there; if that message is lost, within an interval.
func TestEndsToldAtOnce(t *testing.T) {
	for _, c := range []struct {
		ends, learns int
		lost         bool
	}{{1, 3, false}, {3, 1, false}, {1, 3, true}, {3, 1, true}} {
		synctest.Test(t, func(t *testing.T) {
			r, apps, groups := mutual(t)
			from, to := r.host(c.ends), r.host(c.learns)
			begun := time.Now().Add(3 * time.Millisecond) // no beat is due
			time.Sleep(time.Until(begun))
			from.setHook(func(ctx context.Context, method string, host *host, call func(context.Context) error) error {
				if c.lost && method == "Beat" && host == to && time.Since(begun) < time.Millisecond {
					return errDead
				}
				return call(ctx)
			})
			apps[c.ends-1].end()
			r.until("it is told", func() bool {
				return len(to.members(groups[c.learns-1].GetGroup())) < len("2 3") || apps[c.learns-1].countChanges(broken) > 0
			})
			if took := time.Since(begun); took > 60*time.Millisecond || !c.lost && took > 10*time.Millisecond {
				t.Errorf("an application of host %d has ended, and host %d learns it %v later; lost: %v", c.ends, c.learns, took, c.lost)
			}
		})
	}
}

// TestBeatWithoutNews: a daemon whose beats come, but which hears none of this one's, is silent; and numbers that this one
// has not given are no news.
func TestBeatWithoutNews(t *testing.T) {
	for name, further := range map[string]uint64{"the same again": 0, "what was not sent": 1 << 40} {
		synctest.Test(t, func(t *testing.T) {
			r, apps, groups := mutual(t, withTLS)
			h1, h3 := r.host(1), r.host(3)
			list := func(h *host, of *host) uint64 {
				h.m.peers.mu.Lock()
				defer h.m.peers.mu.Unlock()
				return h.m.peers.at[of.addr].list
			}
			req := &mcrdmav1.BeatRequest{Boot: h1.m.boot, List: list(h1, h3), Answer: &mcrdmav1.BeatResponse{List: list(h3, h1)}}
			caller := h3.caller(h1.files)
			h1.hang(h3, true)
			h3.hang(h1, true)
			h3.m.peers.mu.Lock()
			req.Heard = h3.m.peers.at[h1.addr].number
			h3.m.peers.mu.Unlock()
			for range 30 {
				res, err := caller.Beat(t.Context(), req)
				if err != nil || res.GetList() == 0 || res.GetOwn() == 0 {
					t.Fatal(name, res, err)
				}
				req.Heard += further
				r.pass(50 * time.Millisecond)
			}
			if got := h3.members(groups[2].GetGroup()); got != "2" && apps[2].countChanges(broken) == 0 {
				t.Errorf("%s: members %q", name, got)
			}
		})
	}
}
