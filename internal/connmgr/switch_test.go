package connmgr

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestGroupLostAtSwitch: a group that the agent does not have any longer is formed
// anew; the agent tells, or says so when leases are renewed, or when it is back.
func TestGroupLostAtSwitch(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(*rig, string)
	}{
		{"expired", func(r *rig, k string) { r.sw.drop(k, mcrdmav1.WatchResponse_TYPE_EXPIRED) }},
		{"removed", func(r *rig, k string) { r.sw.drop(k, mcrdmav1.WatchResponse_TYPE_REMOVED) }},
		{"not told", func(r *rig, k string) {
			r.sw.mu.Lock()
			defer r.sw.mu.Unlock()
			delete(r.sw.groups, k)
		}},
		{"restarted", func(r *rig, k string) {
			r.sw.close()
			delete(r.sw.groups, k)
			r.sw.serve(r.sw.addr)
		}},
	} {
		testenv.Bubble(t, tt.name, func(t *testing.T) {
			r := newRig(t, 3, withSwitch)
			r.receivers()
			a := r.host(1).app("")
			f := a.create(a.request()).GetFormation()
			other := a.create(a.request()).GetFormation()
			r.pass(time.Second)
			if n := a.countChanges(broken); n > 0 {
				t.Fatal("formed anew for nothing")
			}
			tt.lose(r, name(r.host(1).m.tor.Key(f.GetMcId(), 0)))
			if c := a.await(broken); c.GetGroup().GetNumber() != f.GetGroup().GetNumber() || !strings.Contains(c.GetText(), "torA does not have the group") {
				t.Errorf("%v", c)
			}
			next := a.reform(f, nil).GetFormation()
			if next.GetPath() != bySwitch || len(r.sw.list()) != 2 || f.GetConnection().GetMaxPackets() != fakePackets || next.GetConnection().GetMaxPackets() != fakePackets {
				t.Errorf("%v", next)
			}
			r.pass(11 * time.Second)
			if n := a.countChanges(broken); n != 1 {
				t.Errorf("told %d times", n)
			}
			a.closeGroup(f.GetGroup())
			a.closeGroup(other.GetGroup())
			r.wantNothing()
		})
	}
}

// TestRenewed: leases at the agent are renewed three times in their time. The agent learns
// the group's number when it is installed, and again when it is renewed.
func TestRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		number := a.create(a.request()).GetFormation().GetGroup().GetNumber()
		numbered := func() bool { return r.sw.list()[0].GetGroup().GetKey().GetNumber() == number }
		if !numbered() {
			t.Errorf("%v was not installed as group %d", r.sw.list(), number)
		}
		r.pass(time.Second)
		before := r.sw.called("Renew")
		r.sw.mu.Lock()
		for _, g := range r.sw.groups { // as an agent that comes back
			g.Group.Key.Number = 0
		}
		r.sw.mu.Unlock()
		r.pass(30 * time.Second)
		r.until("renewed, by its number", func() bool { return r.sw.called("Renew") >= before+3 && numbered() })
	})
}

func (s *fakeSwitch) called(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// TestForeignGroup: a group at the agent with this host as the source that no group here
// owns is removed.
func TestForeignGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withSwitch)
		r.add(2)
		foreign := func(mcID uint32) *mcrdmav1.InstallRequest {
			return &mcrdmav1.InstallRequest{Group: &mcrdmav1.Group{Key: &mcrdmav1.GroupKey{Source: "127.9.0.1", McId: mcID}, SenderQpn: 5,
				Address: "127.9.0.2", Receivers: []*mcrdmav1.Receiver{{Address: "127.9.0.2", Qpn: 7}}}}
		}
		if _, err := r.sw.Install(t.Context(), foreign(0x900000)); err != nil { // before the daemon comes
			t.Fatal(err)
		}
		r.start(1)
		r.wantNothing()
		if _, err := r.sw.Install(t.Context(), foreign(0x900001)); err != nil { // and later
			t.Fatal(err)
		}
		r.wantNothing()
		// So is a group that is installed while it is being undone, by a late request.
		m := r.host(1).m
		m.mcIDs.inUse.Store(uint32(0x900002), false)
		if _, err := r.sw.Install(t.Context(), foreign(0x900002)); err != nil {
			t.Fatal(err)
		}
		r.wantNothing()
	})
}

// TestRoute: the application is told when the tree changes, and has the group formed
// anew if switches cannot reach a receiver.
func TestRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		r.until("followed", func() bool {
			r.sw.mu.Lock()
			defer r.sw.mu.Unlock()
			return len(r.sw.watchers) == 3
		})
		tell := func(problems ...string) {
			r.sw.mu.Lock()
			defer r.sw.mu.Unlock()
			for _, g := range r.sw.groups {
				g.Problems = problems
				r.sw.tell(mcrdmav1.WatchResponse_TYPE_UPDATED, g)
			}
		}
		describe := func() *mcrdmav1.GroupInfo {
			res, err := a.rpc.GetGroup(t.Context(), &mcrdmav1.GetGroupRequest{Group: f.GetGroup()})
			if err != nil {
				t.Fatal(err)
			}
			return res.GetGroup()
		}
		a.waitChange(mcrdmav1.GroupChanged_TYPE_TREE)
		tell() // the same tree
		r.sw.mu.Lock()
		r.sw.tree = []*mcrdmav1.Copy{{Ports: []uint32{9, 10}, Destination: "127.9.0.2", Next: []string{"torB"}, Receivers: []string{"127.9.0.2", "127.9.0.3"}}}
		r.sw.mu.Unlock()
		tell()
		a.waitChange(rerouted)
		if n := a.countChanges(rerouted); n != 1 {
			t.Errorf("told %d times", n)
		}
		g := describe().GetFormation()
		if got := strings.Join(g.GetTree(), "\n"); !strings.Contains(got, "  port 9 or 10 -> torB -> h2 (127.9.0.2), h3 (127.9.0.3)") {
			t.Errorf("tree:\n%s", got)
		}
		if want := "by switches: torA merges, 2 receivers behind torB"; g.GetWhy()[0] != want {
			t.Errorf("why: %q, want %q", g.GetWhy(), want)
		}
		// A problem that goes away soon is none.
		tell("127.9.0.3: no route")
		r.until("the problem is known", func() bool { return len(describe().GetProblems()) == 1 })
		r.pass(500 * time.Millisecond)
		tell()
		r.until("the problem is gone", func() bool { return len(describe().GetProblems()) == 0 })
		r.pass(2 * time.Second)
		if n := a.countChanges(broken); n > 0 {
			t.Error("formed anew for nothing")
		}
		tell("127.9.0.3: no route")
		r.until("the problem is known", func() bool { return len(describe().GetProblems()) == 1 })
		r.pass(1100 * time.Millisecond)
		if c := a.waitChange(broken); c.GetHost() != "h3" || c.GetText() != "127.9.0.3: no route" {
			t.Errorf("%v", c)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// TestToldWhileForming: what the agent says of a group while that is being formed
// is not forgotten: a tree that is not what the application has been told, and a
// receiver that cannot be reached.
func TestToldWhileForming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		r.until("followed", func() bool { synced, _ := r.host(1).m.tor.State(); return synced })
		var asked atomic.Int32
		r.sw.set(func(_ context.Context, method string, _ any) error {
			r.sw.mu.Lock()
			defer r.sw.mu.Unlock()
			switch {
			case method != "ListSteps":
			case asked.Add(1) == 1: // for the formation
				for _, g := range r.sw.groups {
					g.Problems = []string{"127.9.0.3: no route"}
					r.sw.tell(mcrdmav1.WatchResponse_TYPE_UPDATED, g)
				}
			default:
				r.sw.tree = []*mcrdmav1.Copy{{Ports: []uint32{9}, Destination: "127.9.0.2", Next: []string{"torB"}, Receivers: []string{"127.9.0.2"}}}
			}
			return nil
		}, nil)
		f := a.create(a.request()).GetFormation()
		if got := strings.Join(f.GetTree(), "\n"); strings.Contains(got, "torB") {
			t.Errorf("tree:\n%s", got)
		}
		a.waitChange(rerouted)
		if c := a.await(broken); c.GetHost() != "h3" || c.GetText() != "127.9.0.3: no route" {
			t.Errorf("%v", c)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// TestAgentWithoutSwitch: an agent that has lost its switch refuses a group, which hosts relay at
// once, and the reason is told everywhere; when the switch is back, so is the group.
func TestAgentWithoutSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, withSwitch)
		r.receivers()
		a, m := r.host(1).app(""), r.host(1).m
		events := a.watch()
		notReady := func() string {
			d, err := a.rpc.GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if s := d.GetSwitch(); !s.GetReachable() || s.GetNotReady() != "" != (len(d.GetProblems()) == 1) {
				t.Errorf("%v", d)
			}
			return d.GetSwitch().GetNotReady()
		}
		gauge := func(want float64) {
			t.Helper()
			all, err := m.metrics.registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range all {
				if f.GetName() == "mcrdma_daemon_switch_ready" && f.GetMetric()[0].GetGauge().GetValue() != want {
					t.Errorf("%v, want %v", f, want)
				}
			}
		}
		r.until("the agent is ready", func() bool { return m.tor.Unusable() == "" })
		gauge(1)
		if ok, note := m.Readiness(); !ok || note != "" || notReady() != "" {
			t.Errorf("%v, %q", ok, note)
		}
		const why = "the switch has not been connected to its agent since noon"
		r.sw.lose(why)
		r.until("it is not ready", func() bool { return notReady() == why })
		gauge(0)
		if ok, note := m.Readiness(); !ok || note != "hosts relay new groups: switch torA: "+why {
			t.Errorf("%v, %q", ok, note)
		}
		begun := time.Now()
		f := a.create(a.request()).GetFormation()
		if f.GetPath() != byHosts || time.Since(begun) > 100*time.Millisecond || f.GetWhy()[0] != "by hosts: torA: NOT_READY: "+why {
			t.Errorf("after %v: %v", time.Since(begun), f)
		}
		r.sw.lose("")
		a.await(broken)
		if next := a.reform(f, nil).GetFormation(); next.GetPath() != bySwitch {
			t.Errorf("%v", next)
		}
		told := slices.DeleteFunc(events(), func(s string) bool { return !strings.HasPrefix(s, "agent") || strings.HasPrefix(s, "agent back") })
		if !slices.Equal(told, []string{"agent not ready torA", "agent ready torA"}) {
			t.Errorf("%q", told)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// TestAgentComesBack: a group that hosts relay only because the agent was not there
// is formed anew when it is; not too often.
func TestAgentComesBack(t *testing.T) {
	for _, reason := range []string{"NOT_READY", "PEER"} {
		testenv.Bubble(t, reason, func(t *testing.T) { comesBack(t, reason) })
	}
}

func comesBack(t *testing.T, reason string) {
	r := newRig(t, 2, withSwitch)
	r.receivers()
	a := r.host(1).app("")
	r.sw.set(func(_ context.Context, method string, _ any) error {
		if method == "Install" {
			return refused(codes.Unavailable, reason, "not yet")
		}
		return nil
	}, nil)
	r.until("followed", func() bool { synced, _ := r.host(1).m.tor.State(); return synced })
	f := a.create(a.request()).GetFormation()
	if f.GetPath() != byHosts {
		t.Fatalf("%v", f)
	}
	r.pass(9 * time.Second)
	if n := a.countChanges(broken); n > 0 {
		t.Fatal("tried again too early")
	}
	a.await(broken)
	if next := a.reform(f, nil).GetFormation(); next.GetPath() != byHosts || next.GetFormation() != 2 {
		t.Errorf("%v", next)
	} else {
		f = next
	}
	// It was not ready: the next try comes later.
	r.pass(15 * time.Second)
	if n := a.countChanges(broken); n > 1 {
		t.Fatal("tried again too early")
	}
	r.sw.set(nil, nil)
	r.passUntil("tried again", func() bool { return a.countChanges(broken) == 2 })
	if next := a.reform(f, nil).GetFormation(); next.GetPath() != bySwitch {
		t.Errorf("%v", next)
	}
	r.pass(30 * time.Second)
	if n := a.countChanges(broken); n > 2 {
		t.Error("formed anew though all is well")
	}
	a.closeGroup(f.GetGroup())
	r.wantNothing()
}

// TestAgentRefusesAgain: a permanent refusal is no reason to try again.
func TestAgentRefusesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		r.sw.set(func(_ context.Context, method string, _ any) error {
			if method == "Install" {
				return refused(codes.FailedPrecondition, "NO_MERGE_POINT", "no")
			}
			return nil
		}, nil)
		a.create(a.request())
		r.pass(time.Minute)
		r.pass(2 * time.Second)
		if n := a.countChanges(broken); n > 0 {
			t.Error("tried again")
		}
	})
}

// TestReformed: what the next formation is made of.
func TestReformed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 5, withSwitch)
		apps := r.receivers()
		have := map[*app]uint64{apps[0]: 7, apps[1]: 5, apps[2]: 9, apps[3]: 0}
		for _, x := range apps {
			x.setAccept(func(ask *mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
				ans := willing(ask)
				if ask.GetFormation() > 1 {
					ans.Have = have[x]
				}
				return ans
			})
		}
		a := r.host(1).app("")
		req := a.request()
		req.Receivers = []string{"h2", "h3", "h4"}
		f := a.create(req).GetFormation()
		next := a.reform(f, func(q *mcrdmav1.ReformGroupRequest) {
			q.Forming.Sent = 6
			q.Add = []string{"h5"}
			q.Suspects = []string{"127.9.0.2"}
		}).GetFormation()
		if next.GetFormation() != 2 || next.GetHave() != 5 || len(next.GetMembers()) != 4 || next.GetMcId() == f.GetMcId() ||
			next.GetConnection().GetPsn() == f.GetConnection().GetPsn() && next.GetConnection().GetQpn() == f.GetConnection().GetQpn() {
			t.Errorf("%v", next)
		}
		// One that joins begins where the others go on.
		for i, want := range []uint64{7, 5, 9, 5} {
			if got := next.GetMembers()[i].GetHave(); got != want {
				t.Errorf("member %d has %d, want %d", i, got, want)
			}
		}
		if list := r.sw.list(); len(list) != 1 || list[0].GetGroup().GetKey().GetMcId() != next.GetMcId() || list[0].GetGroup().GetSenderQpn() != 0x43 ||
			list[0].GetGroup().GetReceivers()[0].GetQpn() != 0x102 {
			t.Errorf("at the switch: %v", list)
		}
		// The receivers were told what it follows.
		apps[0].mu.Lock()
		var first, second uint64
		for k, ask := range apps[0].attached {
			if ask.GetFormation() == 1 {
				first = k
			} else {
				second = ask.GetPrevious()
			}
		}
		apps[0].mu.Unlock()
		if first == 0 || first != second {
			t.Errorf("previous is %d, want %d", second, first)
		}
		// An answer to a beat for the formation before comes late.
		m := r.host(1).m
		m.peers.mu.Lock()
		late := m.peers.at[hostAddr(2)]
		m.peers.mu.Unlock()
		m.removeEnded(late, &mcrdmav1.BeatResponse{Gone: []*mcrdmav1.Gone{{Group: f.GetGroup(), Formation: 1, Address: "127.9.0.2"}, {}}})
		m.mu.Lock()
		for _, g := range m.groups {
			if len(g.status.Load().Lost) > 0 {
				t.Error("a receiver is lost by what was said of the formation before")
			}
		}
		m.mu.Unlock()
		// If the sender's own messages go less far, that counts.
		next = a.reform(next, func(q *mcrdmav1.ReformGroupRequest) { q.Forming.Sent = 3 }).GetFormation()
		if next.GetHave() != 0 && next.GetHave() != 3 {
			t.Errorf("have %d", next.GetHave())
		}
		// An old number, or one already in it, is refused and changes nothing.
		for _, tt := range []struct {
			change func(*mcrdmav1.ReformGroupRequest)
			reason string
		}{
			{func(q *mcrdmav1.ReformGroupRequest) { q.Formation = 2 }, "STALE"},
			{func(q *mcrdmav1.ReformGroupRequest) { q.Add = []string{"h5"} }, "DUPLICATE_ADDRESS"},
			{func(q *mcrdmav1.ReformGroupRequest) { q.Add = []string{"h1"} }, "INVALID"},
			{func(q *mcrdmav1.ReformGroupRequest) { q.Add = []string{"h9"} }, "NO_SUCH_HOST"},
			{func(q *mcrdmav1.ReformGroupRequest) { q.Suspects = []string{"h2"} }, "INVALID"},
			{func(q *mcrdmav1.ReformGroupRequest) { q.Reporter = "h2" }, "INVALID"},
			{func(q *mcrdmav1.ReformGroupRequest) { q.Forming = nil }, "INVALID"},
			{func(q *mcrdmav1.ReformGroupRequest) { q.Group = &mcrdmav1.GroupID{Source: "127.9.0.1", Number: 99} }, "NOT_FOUND"},
			{func(q *mcrdmav1.ReformGroupRequest) { q.Add = append(make([]string, 0), manyAddrs(13)...) }, "TOO_MANY_RECEIVERS"},
		} {
			_, err := a.rpc.ReformGroup(t.Context(), a.reformRequest(next, tt.change))
			if reason, _, _ := reasonOf(err); reason != tt.reason {
				t.Errorf("%v, want %s", err, tt.reason)
			}
		}
		if got := r.host(1).members(f.GetGroup()); got != "2 3 4 5" {
			t.Errorf("members %q", got)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

func manyAddrs(n int) []string {
	var out []string
	for i := range n {
		out = append(out, hostAddr(100+i).String())
	}
	return out
}

// TestReformLeavesOut: a receiver that is late again and again or refuses is left out, one that
// is suspected too often too, and with too few the group ends.
func TestReformLeavesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		apps[0].setAccept(func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest { return nil })
		for range machine.MaxLate {
			if _, err := a.rpc.ReformGroup(t.Context(), a.reformRequest(f, nil)); status.Code(err) != codes.DeadlineExceeded {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		next := a.reform(f, nil).GetFormation()
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
		if len(next.GetMembers()) != 2 {
			t.Errorf("%v", next)
		}
		if c := a.waitChange(removed); c.GetHost() != "h2" || c.GetFormation() != next.GetFormation() || !strings.Contains(c.GetText(), "did not answer in time") {
			t.Errorf("%v", c)
		}
		if d := apps[0].detachment(1); d.GetReason() != mcrdmav1.Detached_REASON_REMOVED {
			t.Errorf("%v", d)
		}
		r.until("all is ended there", func() bool { return apps[0].openMemberships() == 0 })
		// It comes back.
		apps[0].setAccept(willing)
		next = a.reform(next, func(q *mcrdmav1.ReformGroupRequest) { q.Add = []string{"h2"} }).GetFormation()
		if len(next.GetMembers()) != 3 {
			t.Errorf("%v", next)
		}
		// One refuses to commit: the formation is another, without it.
		r.host(1).setHook(func(ctx context.Context, m string, to *host, call func(context.Context) error) error {
			if m == "Commit" && to == r.host(4) {
				return status.Error(codes.PermissionDenied, "injected")
			}
			return call(ctx)
		})
		n := next.GetFormation()
		next = a.reform(next, nil).GetFormation()
		if len(next.GetMembers()) != 2 || next.GetFormation() != n+2 {
			t.Errorf("%v", next)
		}
		r.host(1).setHook(nil)
		if got := r.atSwitch(); got != "3 2" && got != "2 3" {
			t.Errorf("at the switch: %s", got)
		}
		// Suspected twice it stays, and being well in between counts.
		for _, suspect := range []bool{true, true, false, true, true} {
			next = a.reform(next, func(q *mcrdmav1.ReformGroupRequest) {
				if suspect {
					q.Suspects = []string{"127.9.0.3"}
				}
			}).GetFormation()
			if len(next.GetMembers()) != 2 {
				t.Fatalf("%v", next)
			}
		}
		next = a.reform(next, func(q *mcrdmav1.ReformGroupRequest) { q.Suspects = []string{"127.9.0.3"} }).GetFormation()
		if len(next.GetMembers()) != 1 || next.GetMembers()[0].GetHost() != "h2" {
			t.Fatalf("%v", next)
		}
		// The last one goes.
		apps[0].setAccept(func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
			return &mcrdmav1.AnswerAttachRequest{Refused: "enough"}
		})
		_, err := a.rpc.ReformGroup(t.Context(), a.reformRequest(next, nil))
		if reason, _, _ := reasonOf(err); reason != "MIN_SIZE" || !strings.Contains(err.Error(), "enough") {
			t.Errorf("%v", err)
		}
		a.waitChange(failed)
		r.wantNothing()
	})
}

// TestReformUndone: a formation that cannot be made leaves nothing of itself, and the
// group can be formed anew later.
func TestReformUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		req := a.request()
		req.Mode = mcrdmav1.Mode_MODE_REQUIRE
		f := a.create(req).GetFormation()
		for _, w := range ways {
			r.sw.around(func(ctx context.Context, m string, call func(context.Context) error) error {
				if m == "Install" {
					return w.do(ctx, call)
				}
				return call(ctx)
			})
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			_, err := a.rpc.ReformGroup(ctx, a.reformRequest(f, nil))
			cancel()
			if err == nil {
				t.Fatalf("%s: formed", w.name)
			}
			r.sw.around(nil)
			for _, x := range apps {
				r.until("only the first formation is there", func() bool { return x.openMemberships() == 1 })
			}
			r.until("the switch has nothing", func() bool { return len(r.sw.list()) == 0 })
			// The switch has removed the old one by then, and the daemon notices.
			r.until("the group can be entered", func() bool {
				h := r.host(1)
				return h.mcIDs() == 1
			})
		}
		a.await(broken)
		next := a.reform(f, nil).GetFormation()
		if next.GetPath() != bySwitch || len(r.sw.list()) != 1 || proto.Equal(next, f) {
			t.Errorf("%v", next)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// TestMissingIsConfirmed: an agent that misses a group only for a moment, as while it is
// being changed, is asked again before the group is formed anew.
func TestMissingIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		a.create(a.request())
		r.until("followed", func() bool { synced, _ := r.host(1).m.tor.State(); return synced })
		var mu sync.Mutex
		calls := 0
		r.sw.around(func(ctx context.Context, m string, call func(context.Context) error) error {
			mu.Lock()
			defer mu.Unlock()
			if m != "Renew" {
				return call(ctx)
			}
			if calls++; calls > 1 {
				return call(ctx)
			}
			r.sw.mu.Lock()
			groups := r.sw.groups
			r.sw.groups = map[string]*mcrdmav1.GroupStatus{}
			r.sw.mu.Unlock()
			err := call(ctx)
			r.sw.mu.Lock()
			r.sw.groups = groups
			r.sw.mu.Unlock()
			return err
		})
		r.host(1).m.tor.Look()
		r.until("it is asked again", func() bool { mu.Lock(); defer mu.Unlock(); return calls >= 2 })
		r.pass(500 * time.Millisecond)
		if n := a.countChanges(broken); n > 0 {
			t.Error("formed anew for nothing")
		}
	})
}
