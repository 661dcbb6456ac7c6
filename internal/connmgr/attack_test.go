package connmgr

import (
	"context"
	"crypto/x509"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
)

// counter returns what Prometheus would read from a host's daemon: the metric of that name
// and label, or how many values a histogram has.
func (h *host) counter(name, label string) int {
	h.r.t.Helper()
	families, err := h.m.metrics.registry.Gather()
	if err != nil {
		h.r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				return int(m.GetCounter().GetValue()) + int(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

func (h *host) refused(reason string) int {
	return h.counter("mcrdma_daemon_refused_total", reason)
}

// wantRefused checks that a daemon has counted so many more requests under a reason.
func (h *host) wantRefused(reason string, before, more int) {
	h.r.t.Helper()
	if got := h.refused(reason) - before; got != more {
		h.r.t.Errorf("%s counted %d refused requests under %s, want %d", h.name, got, reason, more)
	}
}

// A victim is a group from host 1 to hosts 2 and 3 whose sender and receivers do nothing
// wrong.
type victim struct {
	r         *rig
	sender    *app
	receivers []*app
	group     *mcrdmav1.GroupID
}

func (r *rig) victim() *victim {
	r.t.Helper()
	v := &victim{r: r, sender: r.host(1).app("")}
	for _, i := range []int{2, 3} {
		v.receivers = append(v.receivers, r.host(i).receiver())
	}
	v.group = v.sender.create(v.request()).GetFormation().GetGroup()
	for _, x := range v.receivers {
		x.formation(1)
	}
	return v
}

func (v *victim) request() *mcrdmav1.CreateGroupRequest {
	req := v.sender.request()
	req.Receivers = []string{"h2", "h3"}
	return req
}

// fine checks that the group is unchanged: at the daemons, at the switch and as its
// applications were told; that it goes on while time passes; and that its sender can make
// and close another.
func (v *victim) fine(what string) {
	t := v.r.t
	t.Helper()
	v.r.pass(time.Second)
	if got := v.r.host(1).members(v.group); got != "2 3" {
		t.Errorf("%s: the group has members %q", what, got)
	}
	if got := v.r.atSwitch(); got != "2 3" {
		t.Errorf("%s: the switch has members %q", what, got)
	}
	for i, x := range v.receivers {
		if n := x.openMemberships(); n != 1 {
			t.Errorf("%s: receiver %d has %d memberships", what, i, n)
		}
	}
	res, err := v.sender.rpc.GetGroup(t.Context(), &mcrdmav1.GetGroupRequest{Group: v.group})
	if err != nil || res.GetGroup().GetFormation().GetFormation() != 1 {
		t.Errorf("%s: %v, %v", what, res, err)
	}
	v.sender.mu.Lock()
	for _, c := range v.sender.changes {
		if c.GetGroup().GetNumber() == v.group.GetNumber() && c.GetType() != mcrdmav1.GroupChanged_TYPE_CREATED && c.GetType() != mcrdmav1.GroupChanged_TYPE_TREE {
			t.Errorf("%s: the sender was told %v", what, c)
		}
	}
	v.sender.mu.Unlock()
	v.sender.closeGroup(v.sender.create(v.request()).GetFormation().GetGroup())
	for _, x := range v.receivers {
		v.r.until("the other group's end", func() bool { return x.openMemberships() == 1 })
	}
}

// TestAttackByApplication: an application of the same user, which knows the group's
// numbers and guesses tokens, and one that wants another's service.
func TestAttackByApplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withTLS, withSwitch)
		v := r.victim()
		for _, i := range []int{1, 2} {
			h := r.host(i)
			bad := h.app("")
			attach := uint64(0)
			if i == 2 {
				v.receivers[0].mu.Lock()
				for attach = range v.receivers[0].attached {
				}
				v.receivers[0].mu.Unlock()
			}
			before := h.refused("NOT_FOUND")
			n := 0
			for _, token := range []string{bad.token, "", "AAAAAAAAAAAAAAAAAAAAAAAAAA"} {
				for name, err := range map[string]error{
					"ReformGroup":  second(bad.rpc.ReformGroup(t.Context(), &mcrdmav1.ReformGroupRequest{Token: token, Group: v.group, Formation: 1})),
					"ReportStall":  second(bad.rpc.ReportStall(t.Context(), &mcrdmav1.ReportStallRequest{Token: token, Group: v.group, Formation: 1})),
					"ResumeGroup":  second(bad.rpc.ResumeGroup(t.Context(), &mcrdmav1.ResumeGroupRequest{Token: token, Group: v.group, Formation: 1})),
					"ResumeMember": second(bad.rpc.ResumeMember(t.Context(), &mcrdmav1.ResumeMemberRequest{Token: token, Attach: attach, Group: v.group, Formation: 1})),
					"AnswerAttach": second(bad.rpc.AnswerAttach(t.Context(), &mcrdmav1.AnswerAttachRequest{Token: token, Attach: attach, Refused: "no"})),
					"Leave":        second(bad.rpc.Leave(t.Context(), &mcrdmav1.LeaveRequest{Token: token, Attach: attach})),
					"Unlisten":     second(bad.rpc.Unlisten(t.Context(), &mcrdmav1.UnlistenRequest{Token: token, Service: "store"})),
				} {
					n++
					if reason, _, _ := reasonOf(err); reason != "NOT_FOUND" {
						t.Errorf("%s at %s: %v", name, h.name, err)
					}
				}
				_, err := bad.rpc.CloseGroup(t.Context(), &mcrdmav1.CloseGroupRequest{Token: token, Group: v.group})
				if token == bad.token && err != nil {
					t.Error(err) // it owns nothing of that, so nothing is closed
				} else if token != bad.token {
					n++
				}
			}
			h.wantRefused("NOT_FOUND", before, n)
			before = h.refused("DENIED")
			_, err := bad.rpc.Listen(t.Context(), &mcrdmav1.ListenRequest{Token: bad.token, Service: "store"})
			if i == 2 {
				if reason, _, _ := reasonOf(err); reason != "DENIED" {
					t.Errorf("Listen: %v", err)
				}
				h.wantRefused("DENIED", before, 1)
			}
			v.fine("an application of " + h.name)
			bad.end()
		}
	})
}

// TestAttackByUser: another user, with stolen tokens, more groups than the quota, and
// sessions without end.
func TestAttackByUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withTLS, withSwitch)
		r.add(3)
		for i := 1; i <= 3; i++ {
			r.start(i, func(c *config.Config, _ *Options) {
				c.SocketMode, c.Limits.GroupsPerUser, c.Limits.Memory, c.Users = 0o666, 2, 8<<20, []uint32{1001}
			})
		}
		v := r.victim() // root's
		h := r.host(1)
		mallory := &app{r: r, h: h, rpc: mcrdmav1.NewApplicationsClient(h.as(1001))}
		mallory.open(v.sender.token)
		if mallory.hello.GetResumed() || mallory.token == v.sender.token {
			t.Error("another user got the session")
		}
		before := h.refused("NOT_FOUND")
		for _, err := range []error{
			second(mallory.rpc.CloseGroup(t.Context(), &mcrdmav1.CloseGroupRequest{Token: v.sender.token, Group: v.group})),
			second(mallory.rpc.ReformGroup(t.Context(), &mcrdmav1.ReformGroupRequest{Token: v.sender.token, Group: v.group, Formation: 1})),
			second(mallory.rpc.GetGroup(t.Context(), &mcrdmav1.GetGroupRequest{Group: v.group})),
		} {
			if status.Code(err) != codes.NotFound {
				t.Error(err)
			}
		}
		h.wantRefused("NOT_FOUND", before, 3)
		v.fine("stolen tokens")

		before = h.refused("LIMIT")
		req := mallory.request()
		req.Receivers = []string{"h2"}
		var mine []*mcrdmav1.GroupID
		for i := range 10 {
			res, err := mallory.rpc.CreateGroup(t.Context(), req)
			if reason, _, _ := reasonOf(err); i >= 2 && reason != "LIMIT" || i < 2 && err != nil {
				t.Errorf("group %d: %v", i, err)
			}
			if err == nil {
				mine = append(mine, res.GetFormation().GetGroup())
			}
		}
		h.wantRefused("LIMIT", before, 8)
		for _, g := range mine {
			mallory.closeGroup(g)
		}
		r.until("his groups are gone", func() bool { return v.receivers[0].openMemberships() == 1 })
		at2 := r.host(2).refused("LIMIT")
		req.Regions[0].Length = 9 << 20
		if reason, host, _ := reasonOf(second(mallory.rpc.CreateGroup(t.Context(), req))); reason != "LIMIT" || host != "h2" {
			t.Errorf("too much memory: %s at %s", reason, host)
		}
		r.host(2).wantRefused("LIMIT", at2, 1)
		v.fine("quotas")

		before = h.refused("LIMIT")
		ctx, cancel := context.WithCancel(t.Context())
		var refusals atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range maxSessions / 4 {
					s, err := mallory.rpc.Open(ctx, &mcrdmav1.OpenRequest{Version: ProtocolVersion})
					if err == nil {
						_, err = s.Recv()
					}
					if reason, _, _ := reasonOf(err); reason == "LIMIT" {
						refusals.Add(1)
					} else if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if n := refusals.Load(); n != 1 { // the user had one before
			t.Errorf("%d sessions were refused", n)
		}
		h.wantRefused("LIMIT", before, 1)
		h.app("").end() // there is room for others
		v.fine("sessions")
		cancel()

		before = h.refused("DENIED")
		stranger := mcrdmav1.NewApplicationsClient(h.as(1002))
		if reason, _, _ := reasonOf(second(stranger.GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{}))); reason != "DENIED" {
			t.Errorf("a user who may not: %s", reason)
		}
		h.wantRefused("DENIED", before, 1)
		mallory.end()
	})
}

// TestAttackByHost: a host with a good certificate speaks of another's group, at a
// receiver and at the sender.
func TestAttackByHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withTLS, withSwitch)
		v := r.victim()
		for name, files := range map[string]identity.Files{"h4": r.host(4).files, "switch": r.ca.Switch("torA"),
			"admin":        r.ca.Issue(identity.Identity{Role: identity.Admin, Name: "joe", Addrs: []netip.Addr{hostAddr(1)}}),
			"no addresses": r.ca.Issue(identity.Identity{Role: identity.Host, Name: "h1"})} {
			for _, i := range []int{1, 2} {
				h := r.host(i)
				rpc := h.caller(files)
				before := h.refused("DENIED")
				for method, err := range map[string]error{
					"Prepare": second(rpc.Prepare(t.Context(), prepareOf(v.group, 2, h.addr))),
					"Commit": second(rpc.Commit(t.Context(), &mcrdmav1.CommitRequest{Address: h.addr.String(),
						Formation: &mcrdmav1.FormationInfo{Group: v.group, Formation: 1, Path: byHosts}})),
					"Drop": second(rpc.Drop(t.Context(), &mcrdmav1.DropRequest{Group: v.group, Address: h.addr.String()})),
					"Beat": second(rpc.Beat(t.Context(), &mcrdmav1.BeatRequest{Groups: []*mcrdmav1.Heartbeat{{Group: v.group, Formation: 1}}})),
				} {
					if reason, _, _ := reasonOf(err); reason != "DENIED" {
						t.Errorf("%s at %s by %s: %v", method, h.name, name, err)
					}
				}
				h.wantRefused("DENIED", before, 4)
			}
			v.fine(name)
		}
	})
}

// TestAttackByStranger: a caller without a good certificate is refused.
func TestAttackByStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withTLS, withSwitch)
		v := r.victim()
		h := r.host(2)
		plain, err := grpc.NewClient("passthrough:///"+h.listen, h.r.from("caller/test"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		h.conns = append(h.conns, plain)
		expired := func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
		}
		for name, rpc := range map[string]mcrdmav1.HostsClient{
			"no certificate": mcrdmav1.NewHostsClient(plain),
			"another CA's":   h.caller(withCA(identitytest.New(t).Host("h1", hostAddr(1)), r.host(1).files.CA)),
			"expired":        h.caller(r.ca.Issue(identity.Identity{Role: identity.Host, Name: "h1", Addrs: []netip.Addr{hostAddr(1)}}, expired)),
		} {
			before := h.counter("mcrdma_daemon_handshakes_failed_total", "")
			_, err := rpc.Drop(t.Context(), &mcrdmav1.DropRequest{Group: v.group, Address: h.addr.String()})
			if status.Code(err) != codes.Unavailable {
				t.Errorf("%s: %v", name, err)
			}
			// The client may see the failure first.
			r.until("the handshake is counted", func() bool { return h.counter("mcrdma_daemon_handshakes_failed_total", "") > before })
			v.fine(name)
		}
	})
}

// withCA trusts another CA.
func withCA(f identity.Files, ca string) identity.Files {
	f.CA = ca
	return f
}

// TestAttackByImpostor: in place of a receiver's daemon another host answers, with a good
// certificate that is its own.
func TestAttackByImpostor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withTLS, withSwitch)
		r.add(4)
		for _, i := range []int{2, 3, 4} {
			r.start(i)
		}
		h := r.start(1, func(c *config.Config, _ *Options) {
			for i := range c.Hosts {
				if c.Hosts[i].Name == "h4" {
					c.Hosts[i] = config.Host{Name: "h5", Address: hostAddr(5), Daemon: r.host(4).listen}
				}
			}
		})
		v := r.victim()
		eve := r.host(4).receiver()
		before := h.counter("mcrdma_daemon_host_call_seconds", "untrusted")
		req := v.request()
		req.Receivers = append(req.Receivers, "h5")
		_, err := v.sender.rpc.CreateGroup(t.Context(), req)
		if reason, host, _ := reasonOf(err); reason != "UNTRUSTED" || host != "h5" {
			t.Errorf("%v", err)
		}
		if got := h.counter("mcrdma_daemon_host_call_seconds", "untrusted") - before; got < 1 {
			t.Error("the call is not counted as untrusted")
		}
		eve.mu.Lock()
		if len(eve.attached) > 0 {
			t.Errorf("it was asked: %v", eve.attached)
		}
		eve.mu.Unlock()
		for _, x := range v.receivers {
			r.until("what was made is undone", func() bool { return x.openMemberships() == 1 })
		}
		v.fine("an impostor")
	})
}

// prepareOf is a good request for a group's formation at a receiver.
func prepareOf(g *mcrdmav1.GroupID, formation uint32, at netip.Addr) *mcrdmav1.PrepareRequest {
	req := prepareRequest()
	req.Group, req.Formation, req.Address, req.Connection.Address = g, formation, at.String(), g.GetSource()
	return req
}

// TestFloodOfGroups: a host asks a receiver for groups, and formations of groups,
// without end, and its application wants them all; another host's groups find room
// all the time.
func TestFloodOfGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withTLS, withSwitch)
		r.add(4)
		for i := 1; i <= 4; i++ {
			r.start(i, func(c *config.Config, _ *Options) { c.Limits.Memberships = 32 }) // 8 of one sender
		}
		v := r.victim()
		h := r.host(2)
		before := h.refused("LIMIT")
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var taken, limited atomic.Int64
		flooded := make(chan struct{})
		begun := sync.OnceFunc(func() { close(flooded) })
		for w := range 3 {
			rpc := h.caller(r.host(4).files)
			wg.Go(func() {
				for n := uint64(w) + 1; ctx.Err() == nil; n += 3 {
					for formation := uint32(1); formation <= 8; formation++ {
						_, err := rpc.Prepare(ctx, prepareOf(&mcrdmav1.GroupID{Source: "127.9.0.4", Number: n}, formation, h.addr))
						switch reason, _, _ := reasonOf(err); {
						case err == nil:
							taken.Add(1)
						case reason == "LIMIT":
							if limited.Add(1) == 100 {
								begun()
							}
						case ctx.Err() == nil:
							t.Errorf("group %d, formation %d: %v", n, formation, err)
						}
					}
				}
			})
		}
		<-flooded
		var mine []*mcrdmav1.GroupID
		for range 7 { // with the first, as many as one sender may have
			mine = append(mine, v.sender.create(v.request()).GetFormation().GetGroup())
		}
		stop()
		wg.Wait()
		if n := taken.Load(); n != 8*machine.MaxFormations {
			t.Errorf("%d formations were taken, want %d of each of 8 groups", n, machine.MaxFormations)
		}
		if n := int64(h.refused("LIMIT") - before); n < limited.Load() || limited.Load() < 100 {
			t.Errorf("%d requests were refused for limits, and %d counted", limited.Load(), n)
		}
		for _, g := range mine {
			v.sender.closeGroup(g)
		}
		rpc := h.caller(r.host(4).files)
		for n := range uint64(200) { // more than were taken
			if _, err := rpc.Drop(t.Context(), &mcrdmav1.DropRequest{Group: &mcrdmav1.GroupID{Source: "127.9.0.4", Number: n + 1}, Address: h.addr.String()}); err != nil {
				t.Fatal(err)
			}
		}
		for _, x := range v.receivers {
			r.until("the flood has run off", func() bool { return x.openMemberships() == 1 })
		}
		v.fine("a flood")
		v.sender.closeGroup(v.group)
		r.wantNothing()
	})
}

// TestFloodOfQuestions: a host asks an application again and again and gives up at
// once, while the application is too busy to read. It does not lose its session, nor
// the group that it is in.
func TestFloodOfQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withTLS, withSwitch)
		v := r.victim()
		h := r.host(2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		rpc := mcrdmav1.NewApplicationsClient(h.dial())
		s, err := rpc.Open(ctx, &mcrdmav1.OpenRequest{Version: ProtocolVersion})
		if err != nil {
			t.Fatal(err)
		}
		e, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		token := e.GetHello().GetToken()
		if _, err := rpc.Listen(ctx, &mcrdmav1.ListenRequest{Token: token, Service: "busy"}); err != nil {
			t.Fatal(err)
		}
		req := v.sender.request()
		req.Service, req.Receivers = "busy", []string{"h2"}
		answered := make(chan error, 1)
		go func() {
			e, err := s.Recv()
			if err == nil {
				ans := willing(e.GetAttachRequested())
				ans.Token, ans.Attach = token, e.GetAttachRequested().GetAttach()
				_, err = rpc.AnswerAttach(ctx, ans)
			}
			answered <- err
		}()
		g := v.sender.create(req).GetFormation().GetGroup()
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
		before := h.refused("TIMEOUT")
		const each = 1000 // with two events each, more than a queue holds
		var wg sync.WaitGroup
		for w := range 4 {
			mallory := h.caller(r.host(4).files)
			wg.Go(func() {
				for n := range uint64(each) {
					ask := prepareOf(&mcrdmav1.GroupID{Source: "127.9.0.4", Number: 1 + n*4 + uint64(w)}, 1, h.addr)
					ask.Service, ask.Timeout = "busy", durationpb.New(time.Microsecond)
					if reason, _, _ := reasonOf(second(mallory.Prepare(ctx, ask))); reason != "TIMEOUT" {
						t.Errorf("question %d: %q", n, reason)
					}
				}
			})
		}
		wg.Wait()
		h.wantRefused("TIMEOUT", before, 4*each)
		if got := r.host(1).members(g); got != "2" {
			t.Errorf("the busy application's group has members %q", got)
		}
		if _, err := rpc.Listen(ctx, &mcrdmav1.ListenRequest{Token: token, Service: "more"}); err != nil {
			t.Errorf("its session has ended: %v", err)
		}
		v.sender.closeGroup(g)
		v.fine("questions")
	})
}
