package connmgr

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

const (
	suspected = mcrdmav1.GroupChanged_TYPE_SUSPECTED
	removed   = mcrdmav1.GroupChanged_TYPE_REMOVED
	broken    = mcrdmav1.GroupChanged_TYPE_REFORM
	rerouted  = mcrdmav1.GroupChanged_TYPE_ROUTE
	failed    = mcrdmav1.GroupChanged_TYPE_FAILED
	recovered = mcrdmav1.GroupChanged_TYPE_RECOVERED
)

// members are the addresses of a group's receivers as the daemon has them, in short.
func (h *host) members(g *mcrdmav1.GroupID) string {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	id, _ := groupIDFrom(g)
	x := h.m.groups[id]
	if x == nil || x.form() == nil {
		return "none"
	}
	var out []string
	for _, r := range x.form().Receivers {
		out = append(out, strings.TrimPrefix(r.Addr.String(), "127.9.0."))
	}
	return strings.Join(out, " ")
}

// followed is how many hosts are monitored.
func (h *host) followed() int {
	h.m.peers.mu.Lock()
	defer h.m.peers.mu.Unlock()
	return len(h.m.peers.health.Peers())
}

// atSwitch is the same, as the switch has them.
func (r *rig) atSwitch() string {
	var out []string
	for _, g := range r.sw.list() {
		for _, x := range g.GetGroup().GetReceivers() {
			out = append(out, strings.TrimPrefix(x.GetAddress(), "127.9.0."))
		}
	}
	return strings.Join(out, " ")
}

// TestSilentReceiver: a host that does not answer is suspected, and taken out in
// time; the formation goes on with the others, and the connection stays what it is.
func TestSilentReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		r.pass(time.Second)
		r.host(1).hang(r.host(2), true) // the one that the sender's queue pair is connected to
		r.pass(400 * time.Millisecond)
		if n := a.countChanges(suspected); n > 0 {
			t.Error("suspected too early")
		}
		r.pass(200 * time.Millisecond)
		if c := a.waitChange(suspected); c.GetAddress() != "127.9.0.2" || c.GetHost() != "h2" || c.GetFormation() != 1 || !strings.Contains(c.GetText(), "nothing is heard") {
			t.Errorf("%v", c)
		}
		r.pass(300 * time.Millisecond)
		if n := a.countChanges(removed); n > 0 {
			t.Error("removed too early")
		}
		r.pass(200 * time.Millisecond)
		if c := a.waitChange(removed); c.GetAddress() != "127.9.0.2" || c.GetFormation() != 1 {
			t.Errorf("%v", c)
		}
		r.until("two hosts are followed", func() bool { return r.host(1).followed() == 2 })
		if got := r.host(1).members(f.GetGroup()) + "|" + r.atSwitch(); got != "3 4|3 4" {
			t.Errorf("members %q", got)
		}
		if g := r.sw.list()[0].GetGroup(); g.GetAddress() != "127.9.0.2" {
			t.Errorf("the group's address is %s now", g.GetAddress())
		}
		res, err := a.rpc.GetGroup(t.Context(), &mcrdmav1.GetGroupRequest{Group: f.GetGroup()})
		if err != nil {
			t.Fatal(err)
		}
		if s := res.GetGroup().GetStates()[0]; s.GetState() != "removed" || s.GetHost() != "h2" || s.GetReason() == "" || time.Since(s.GetSince().AsTime()) > time.Second {
			t.Errorf("%v", s)
		}
		if s := res.GetGroup().GetStates()[1]; s.GetState() != "ok" || time.Since(s.GetSince().AsTime()) > time.Minute {
			t.Errorf("%v", s)
		}
		if c := res.GetGroup().GetFormation().GetConnection(); c.GetAddress() != "127.9.0.2" {
			t.Errorf("connection %v", c)
		}
		if a.countChanges(broken)+a.countChanges(failed)+a.countChanges(rerouted) > 0 {
			t.Errorf("%v", a.changes)
		}
		r.host(1).hang(r.host(2), false)
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// TestRecovered: one that answers again in time stays.
func TestRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		r.host(1).hang(r.host(3), true)
		r.pass(700 * time.Millisecond)
		a.waitChange(suspected)
		r.host(1).hang(r.host(3), false)
		// The beat that hangs ends by itself.
		r.until("beats go on", func() bool {
			others := r.host(1).m.peers
			others.mu.Lock()
			defer others.mu.Unlock()
			return others.at[hostAddr(3)].beats == 0
		})
		r.pass(200 * time.Millisecond)
		if c := a.waitChange(recovered); c.GetAddress() != "127.9.0.3" {
			t.Errorf("%v", c)
		}
		r.pass(2 * time.Second)
		if got := r.host(1).members(f.GetGroup()); got != "2 3" {
			t.Errorf("members %q", got)
		}
	})
}

// TestBeatsOverlap: a beat that is held up holds up none after it.
func TestBeatsOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		r.receivers()
		h := r.host(1)
		a := h.app("")
		a.create(a.request())
		var begun, answered atomic.Int32
		held := make(chan struct{})
		release := sync.OnceFunc(func() { close(held) })
		defer release()
		h.setHook(func(ctx context.Context, method string, to *host, call func(context.Context) error) error {
			if method != "Beat" || to != r.host(2) {
				return call(ctx)
			}
			if begun.Add(1) == 1 {
				<-held
			}
			defer answered.Add(1)
			return call(ctx)
		})
		for range 3 {
			h.m.beat(time.Now())
		}
		r.until("two beats are answered", func() bool { return answered.Load() == 2 })
		release()
		r.until("all are", func() bool { return answered.Load() == 3 })
	})
}

// TestDaemonGone: while a host refuses connections, its receivers have the time of
// grace; a stall shortens it, unless the switch counts answers of their applications.
func TestDaemonGone(t *testing.T) {
	for _, stall := range []bool{false, true} {
		testenv.Bubble(t, fmt.Sprintf("stall %v", stall), func(t *testing.T) {
			r := newRig(t, 4, withSwitch)
			r.receivers()
			a := r.host(1).app("")
			f := a.create(a.request()).GetFormation()
			r.pass(time.Second)
			r.host(3).kill()
			r.until("it is refused", func() bool {
				r.pass(100 * time.Millisecond)
				return a.countChanges(suspected) > 0
			})
			if !stall {
				r.pass(8 * time.Second)
			}
			if n := a.countChanges(removed); n > 0 {
				t.Fatal("removed within grace")
			}
			if stall {
				r.sw.set(func(_ context.Context, method string, _ any) error {
					if method == "Get" {
						r.sw.mu.Lock()
						defer r.sw.mu.Unlock()
						for i := 2; i <= 4; i++ {
							addr := fmt.Sprintf("127.9.0.%d", i)
							r.sw.counters[addr] = &mcrdmav1.MemberCounters{Acks: r.sw.counters[addr].GetAcks() + 1}
						}
					}
					return nil
				}, nil)
				res, err := a.rpc.ReportStall(t.Context(), &mcrdmav1.ReportStallRequest{Token: a.token, Group: f.GetGroup(), Formation: 1})
				if err != nil || len(res.GetSuspects()) > 0 || a.countChanges(removed) > 0 {
					t.Errorf("its application answers: %v, %v", res, err)
				}
				r.sw.set(nil, nil)
				r.pass(100 * time.Millisecond) // of another stall
				res, err = a.rpc.ReportStall(t.Context(), &mcrdmav1.ReportStallRequest{Token: a.token, Group: f.GetGroup(), Formation: 1})
				if err != nil || len(res.GetSuspects()) != 1 || res.GetSuspects()[0] != "127.9.0.3" {
					t.Errorf("%v, %v", res, err)
				}
			} else {
				r.pass(3 * time.Second)
			}
			if c := a.waitChange(removed); c.GetHost() != "h3" {
				t.Errorf("%v", c)
			}
			r.until("the switch goes on without", func() bool { return r.atSwitch() == "2 4" })
		})
	}
}

// TestMinSize: a group with too few receivers left ends, everywhere.
func TestMinSize(t *testing.T) {
	for _, tt := range []struct {
		min   uint32
		lives bool
	}{{1, true}, {2, true}, {3, false}, {0, true}} {
		testenv.Bubble(t, fmt.Sprint(tt.min), func(t *testing.T) {
			r := newRig(t, 3, withSwitch)
			apps := r.receivers()
			a := r.host(1).app("")
			req := a.request()
			req.MinSize = tt.min
			f := a.create(req).GetFormation()
			apps[0].end()
			if tt.lives {
				if c := a.await(removed); c.GetHost() != "h2" || !strings.Contains(c.GetText(), "the application has ended") {
					t.Errorf("%v", c)
				}
				r.until("the switch goes on without", func() bool { return r.atSwitch() == "3" })
				apps[1].end()
			}
			if c := a.await(failed); !strings.Contains(c.GetText(), "min_size") || c.GetGroup().GetNumber() != f.GetGroup().GetNumber() {
				t.Errorf("%v", c)
			}
			if !tt.lives {
				if d := apps[1].detachment(1); d.GetReason() != mcrdmav1.Detached_REASON_REMOVED || !strings.Contains(d.GetText(), "the group has failed") {
					t.Errorf("%v", d)
				}
			}
			r.wantNothing()
			a.closeGroup(f.GetGroup())
		})
	}
}

// TestLeave: an application that leaves is taken out at once.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		for attach := range apps[1].attached {
			if _, err := apps[1].rpc.Leave(t.Context(), &mcrdmav1.LeaveRequest{Token: apps[1].token, Attach: attach, Reason: "full"}); err != nil {
				t.Fatal(err)
			}
			_, err := apps[1].rpc.Leave(t.Context(), &mcrdmav1.LeaveRequest{Token: apps[1].token, Attach: attach})
			if reason, _, _ := reasonOf(err); reason != "NOT_FOUND" {
				t.Errorf("leaving twice: %v", err)
			}
		}
		r.pass(100 * time.Millisecond)
		if c := a.waitChange(removed); c.GetHost() != "h3" || !strings.Contains(c.GetText(), "the application has left: full") {
			t.Errorf("%v", c)
		}
		r.until("the switch goes on without", func() bool { return r.atSwitch() == "2 4" })
		if len(apps[1].detached) > 0 {
			t.Errorf("told what it did itself: %v", apps[1].detached)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// TestRelayBreaks: where hosts relay, the loss of one ends the formation.
func TestRelayBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4)
		apps := r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		apps[1].end()
		if c := a.await(broken); c.GetHost() != "h3" || c.GetFormation() != 1 || !strings.Contains(c.GetText(), "has ended") {
			t.Errorf("%v", c)
		}
		r.pass(time.Second)
		if n := a.countChanges(broken); n != 1 {
			t.Errorf("told %d times", n)
		}
		// It cannot be in the next, and the application learns that then.
		res := a.reform(f, nil)
		if got := res.GetFormation(); got.GetFormation() != 2 || len(got.GetMembers()) != 2 || got.GetMcId() == f.GetMcId() || got.GetRelay().GetGroup() == f.GetRelay().GetGroup() {
			t.Errorf("%v", got)
		}
		if c := a.waitChange(removed); c.GetHost() != "h3" || c.GetFormation() != 2 {
			t.Errorf("%v", c)
		}
		r.until("two hosts are followed", func() bool { return r.host(1).followed() == 2 })
		for _, i := range []int{0, 2} {
			apps[i].formation(2)
			if d := apps[i].detachment(1); d.GetReason() != mcrdmav1.Detached_REASON_REFORMED {
				t.Errorf("%v", d)
			}
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// reform forms a group anew.
func (a *app) reform(f *mcrdmav1.FormationInfo, change func(*mcrdmav1.ReformGroupRequest)) *mcrdmav1.ReformGroupResponse {
	a.r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	res, err := a.rpc.ReformGroup(ctx, a.reformRequest(f, change))
	if err != nil {
		a.r.t.Fatalf("ReformGroup: %v", err)
	}
	return res
}

func (a *app) reformRequest(f *mcrdmav1.FormationInfo, change func(*mcrdmav1.ReformGroupRequest)) *mcrdmav1.ReformGroupRequest {
	req := &mcrdmav1.ReformGroupRequest{Token: a.token, Group: f.GetGroup(), Formation: f.GetFormation(),
		Forming: &mcrdmav1.Forming{Qpn: 0x43, Bootstrap: "127.0.0.1:7002"}}
	if change != nil {
		change(req)
	}
	return req
}

// TestLease: a receiver whose sender is silent is told so.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		apps := r.receivers()
		a := r.host(1).app("")
		a.create(a.request())
		apps[0].formation(1)
		r.pass(time.Second)
		r.pass(25 * time.Second)
		r.pass(time.Second) // a beat renews it
		r.pass(25 * time.Second)
		r.host(1).kill()
		r.pass(time.Second)
		if s := r.host(2).leftovers(); !strings.Contains(s, "1 memberships") {
			t.Fatal("detached too early")
		}
		r.pass(5 * time.Second)
		r.pass(200 * time.Millisecond)
		if d := apps[0].detachment(1); d.GetReason() != mcrdmav1.Detached_REASON_SENDER_LOST || !strings.Contains(d.GetText(), "30s") {
			t.Errorf("%v", d)
		}
		r.wantNothing()
	})
}

// TestUpdateFails: if the switches cannot go on without a receiver, the group is
// formed anew, without it.
func TestUpdateFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		r.sw.set(func(_ context.Context, method string, _ any) error {
			if method == "Update" {
				return refused(codes.Internal, "SWITCH", "no")
			}
			return nil
		}, nil)
		apps[2].end()
		if c := a.await(broken); c.GetHost() != "h4" || !strings.Contains(c.GetText(), "torA: SWITCH: no") {
			t.Errorf("%v", c)
		}
		res := a.reform(f, nil)
		if res.GetFormation().GetPath() != bySwitch || len(res.GetFormation().GetMembers()) != 2 {
			t.Errorf("%v", res)
		}
		if got := r.atSwitch(); got != "2 3" {
			t.Errorf("at the switch: %s", got)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}
