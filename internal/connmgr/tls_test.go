package connmgr

import (
	"crypto/x509"
	"net"
	"net/netip"
	"strings"
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
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestWrongCertificates: a receiver whose certificate is not good, or that does not
// take the sender's, is named, with the reason.
func TestWrongCertificates(t *testing.T) {
	expired := func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	}
	for _, tt := range []struct {
		name   string
		change func(*rig) // before daemons start
		host   string
		text   string
	}{
		{"receiver's expired", func(r *rig) {
			r.ca.Reissue(r.host(2).files, identity.Identity{Role: identity.Host, Name: "h2", Addrs: []netip.Addr{hostAddr(2)}}, expired)
		}, "h2", "expired"},
		{"sender's expired", func(r *rig) {
			r.ca.Reissue(r.host(1).files, identity.Identity{Role: identity.Host, Name: "h1", Addrs: []netip.Addr{hostAddr(1)}}, expired)
		}, "h", "expired"},
		{"another CA", func(r *rig) { r.host(2).files = identitytest.New(r.t).Host("h2", hostAddr(2)) }, "h2", "certificate"},
	} {
		testenv.Bubble(t, tt.name, func(t *testing.T) {
			r := newRig(t, 0, withTLS)
			r.add(3)
			tt.change(r)
			for i := 1; i <= 3; i++ {
				r.start(i)
			}
			r.receivers()
			a := r.host(1).app("")
			d, err := a.rpc.GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{})
			if err != nil || d.GetPeers()[0].GetState() != "untrusted" || !strings.Contains(d.GetPeers()[0].GetError(), tt.text) {
				t.Errorf("status: %v, %v", d.GetPeers(), err)
			}
			begun := time.Now()
			_, err = a.rpc.CreateGroup(t.Context(), a.request())
			if reason, host, _ := reasonOf(err); reason != "UNTRUSTED" || !strings.HasPrefix(host, tt.host) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v (%s at %s)", err, reason, host)
			}
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
			r.wantNothing()
		})
	}
}

// TestOwnCertificate: a daemon whose certificate on disk others would not accept says so, though its
// connections go on.
func TestOwnCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, withTLS)
		a := r.host(1).app("")
		own := identity.Identity{Role: identity.Host, Name: "h1", Addrs: []netip.Addr{hostAddr(1)}}
		other := identity.Identity{Role: identity.Host, Name: "h1", Addrs: []netip.Addr{hostAddr(7)}}
		for _, tt := range []struct {
			id          identity.Identity
			from, until time.Duration
			want        string
		}{
			{own, -time.Hour, 30 * 24 * time.Hour, ""},
			{own, -30 * 24 * time.Hour, 24 * time.Hour, "ends soon"},
			{own, -time.Hour, 24 * time.Hour, ""}, // issued for a day
			{own, -time.Hour, -time.Minute, "has ended"},
			{own, time.Hour, 30 * 24 * time.Hour, "is valid only from"},
			{other, -time.Hour, 30 * 24 * time.Hour, "should be for host:h1 127.9.0.1"},
		} {
			r.ca.Reissue(r.host(1).files, tt.id, func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Now().Add(tt.from), time.Now().Add(tt.until) })
			d, err := a.rpc.GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{})
			if got := strings.Join(d.GetProblems(), "; "); err != nil || (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("%q, %v, want %q", got, err, tt.want)
			}
		}
	})
}

// TestAnotherHost: the host that answers must be the one that was called.
func TestAnotherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withTLS)
		r.add(4)
		r.start(2)
		r.start(3)
		r.start(1, func(c *config.Config, _ *Options) {
			c.Hosts = []config.Host{
				{Name: "h2", Address: hostAddr(2), Daemon: r.host(3).listen},  // another name
				{Name: "h4", Address: hostAddr(4), Daemon: r.host(3).listen},  // another name and address
				{Name: "h3", Address: hostAddr(77), Daemon: r.host(3).listen}, // an address that it does not own
			}
		})
		r.host(2).receiver()
		r.host(3).receiver()
		a := r.host(1).app("")
		for _, name := range []string{"h2", "h4", "h3"} {
			req := a.request()
			req.Receivers = []string{name}
			_, err := a.rpc.CreateGroup(t.Context(), req)
			if reason, host, _ := reasonOf(err); reason != "UNTRUSTED" || host != name || !strings.Contains(err.Error(), "not the identity expected") {
				t.Errorf("%s: %v", name, err)
			}
		}
		r.wantNothing()
	})
}

// TestPlainTextAmongTLS: a daemon without certificates is recognized.
func TestPlainTextAmongTLS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withTLS)
		r.add(2)
		r.start(1)
		r.host(2).files = identity.Files{}
		r.start(2)
		r.host(2).receiver()
		a := r.host(1).app("")
		_, err := a.rpc.CreateGroup(t.Context(), a.request())
		if reason, host, _ := reasonOf(err); reason != "UNTRUSTED" || host != "h2" || !strings.Contains(err.Error(), "does not speak TLS") {
			t.Errorf("%v", err)
		}
	})
}

// TestPlainTextToTLS: a daemon without certificates says of others that they have some.
func TestPlainTextToTLS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withTLS, withSwitch)
		r.add(2)
		r.host(1).files = identity.Files{}
		r.start(1)
		r.start(2)
		r.host(2).receiver()
		a := r.host(1).app("")
		const want = "it speaks TLS, and this side has no certificate"
		_, err := a.rpc.CreateGroup(t.Context(), a.request())
		if reason, host, _ := reasonOf(err); reason != "UNTRUSTED" || host != "h2" || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
		synctest.Wait()
		if d, err := a.rpc.GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{}); err != nil || !strings.Contains(d.GetSwitch().GetError(), want) {
			t.Errorf("of the switch: %v, %v", d.GetSwitch(), err)
		}
	})
}

// caller calls a daemon with some identity.
func (h *host) caller(files identity.Files) mcrdmav1.HostsClient {
	h.r.t.Helper()
	creds, err := files.Client(identity.Identity{})
	if err != nil {
		h.r.t.Fatal(err)
	}
	c, err := grpc.NewClient("passthrough:///"+h.listen, h.r.from("caller/test"), grpc.WithTransportCredentials(creds))
	if err != nil {
		h.r.t.Fatal(err)
	}
	h.conns = append(h.conns, c)
	return mcrdmav1.NewHostsClient(c)
}

// prepareRequest is a good one from h1 to h2.
func prepareRequest() *mcrdmav1.PrepareRequest {
	return &mcrdmav1.PrepareRequest{Version: 1, Group: &mcrdmav1.GroupID{Source: "127.9.0.1", Number: 1}, Formation: 1, Service: "store",
		Program: "p", Address: "127.9.0.2", Connection: &mcrdmav1.Connection{Address: "127.9.0.1", Qpn: 0x800001, Psn: 5, Mtu: 1024},
		Regions: []*mcrdmav1.RegionSpec{{Length: 100, Rkey: 1, Va: 1 << 40}}, Relay: true, Timeout: durationpb.New(2 * time.Second)}
}

// TestHostsCallers: a host makes groups with its own addresses only, and only hosts make
// groups.
func TestHostsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withTLS)
		b := r.host(2).receiver()
		own := r.host(2).caller(r.host(1).files)
		if _, err := own.Prepare(t.Context(), prepareRequest()); err != nil {
			t.Fatal(err)
		}
		for name, files := range map[string]identity.Files{"h3": r.host(3).files, "switch": r.ca.Switch("torA"), "admin": r.ca.Issue(identity.Identity{Role: identity.Admin, Name: "joe", Addrs: []netip.Addr{hostAddr(1)}})} {
			rpc := r.host(2).caller(files)
			g := prepareRequest().GetGroup()
			for method, err := range map[string]error{
				"Prepare":    second(rpc.Prepare(t.Context(), prepareRequest())),
				"Commit":     second(rpc.Commit(t.Context(), &mcrdmav1.CommitRequest{Formation: &mcrdmav1.FormationInfo{Group: g, Formation: 1}, Address: "127.9.0.2"})),
				"RecordView": second(rpc.RecordView(t.Context(), viewOf(1, "127.9.0.2", 2))),
				"Drop":       second(rpc.Drop(t.Context(), &mcrdmav1.DropRequest{Group: g, Address: "127.9.0.2"})),
				"Beat":       second(rpc.Beat(t.Context(), &mcrdmav1.BeatRequest{Groups: []*mcrdmav1.Heartbeat{{Group: g, Formation: 1}}})),
			} {
				if reason, host, _ := reasonOf(err); reason != "DENIED" || host != "h2" || status.Code(err) != codes.PermissionDenied {
					t.Errorf("%s by %s: %v", method, name, err)
				}
			}
		}
		if n := b.openMemberships(); n != 1 {
			t.Errorf("%d memberships", n)
		}
		// A caller without a certificate is refused.
		c, err := grpc.NewClient("passthrough:///"+r.host(2).listen, r.from("caller/test"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := mcrdmav1.NewHostsClient(c).Prepare(t.Context(), prepareRequest()); status.Code(err) != codes.Unavailable {
			t.Errorf("%v", err)
		}
		// Applications' services are not there, and the unix socket is no place for TCP.
		if _, err := mcrdmav1.NewApplicationsClient(c).GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{}); err == nil {
			t.Error("applications are served to the network")
		}
		if _, err := own.Drop(t.Context(), &mcrdmav1.DropRequest{Group: prepareRequest().GetGroup(), Address: "127.9.0.2"}); err != nil {
			t.Error(err)
		}
		r.wantNothing()
	})
}

// TestApplicationsOnTCP: only a unix socket identifies the caller.
func TestApplicationsOnTCP(t *testing.T) {
	r := newRig(t, 0, onSockets)
	r.add(1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.start(1, func(_ *config.Config, o *Options) { o.Apps = l })
	c, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := mcrdmav1.NewApplicationsClient(c).GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
}

// TestBadPrepare: what another daemon may ask for.
func TestBadPrepare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		b := r.host(2).receiver()
		rpc := r.host(2).caller(identity.Files{})
		for name, tt := range map[string]struct {
			change func(*mcrdmav1.PrepareRequest)
			reason string
		}{
			"version 0":          {func(q *mcrdmav1.PrepareRequest) { q.Version = 0 }, "VERSION"},
			"version 2":          {func(q *mcrdmav1.PrepareRequest) { q.Version = 2 }, "VERSION"},
			"no group":           {func(q *mcrdmav1.PrepareRequest) { q.Group = nil }, "INVALID"},
			"number 0":           {func(q *mcrdmav1.PrepareRequest) { q.Group.Number = 0 }, "INVALID"},
			"another host":       {func(q *mcrdmav1.PrepareRequest) { q.Address = "127.9.0.3" }, "NO_SUCH_HOST"},
			"no address":         {func(q *mcrdmav1.PrepareRequest) { q.Address = "" }, "INVALID"},
			"formation 0":        {func(q *mcrdmav1.PrepareRequest) { q.Formation = 0 }, "INVALID"},
			"service":            {func(q *mcrdmav1.PrepareRequest) { q.Service = "/" }, "INVALID"},
			"no such service":    {func(q *mcrdmav1.PrepareRequest) { q.Service = "s" }, "NO_SERVICE"},
			"lease":              {func(q *mcrdmav1.PrepareRequest) { q.Lease = durationpb.New(2 * time.Hour) }, "INVALID"},
			"negative lease":     {func(q *mcrdmav1.PrepareRequest) { q.Lease = durationpb.New(-1) }, "INVALID"},
			"no way":             {func(q *mcrdmav1.PrepareRequest) { q.Connection, q.Relay = nil, false }, "INVALID"},
			"another's address":  {func(q *mcrdmav1.PrepareRequest) { q.Connection.Address = "127.9.0.3" }, "INVALID"},
			"real QPN":           {func(q *mcrdmav1.PrepareRequest) { q.Connection.Qpn = 0x7fffff }, "INVALID"},
			"QPN of 25 bits":     {func(q *mcrdmav1.PrepareRequest) { q.Connection.Qpn = 0x1000000 }, "INVALID"},
			"PSN":                {func(q *mcrdmav1.PrepareRequest) { q.Connection.Psn = 1 << 24 }, "INVALID"},
			"MTU":                {func(q *mcrdmav1.PrepareRequest) { q.Connection.Mtu = 1000 }, "INVALID"},
			"DSCP":               {func(q *mcrdmav1.PrepareRequest) { q.Connection.Dscp = 64 }, "INVALID"},
			"regions":            {func(q *mcrdmav1.PrepareRequest) { q.Regions = make([]*mcrdmav1.RegionSpec, 17) }, "LIMIT"},
			"nil region":         {func(q *mcrdmav1.PrepareRequest) { q.Regions[0] = nil }, "INVALID"},
			"region without key": {func(q *mcrdmav1.PrepareRequest) { q.Regions[0].Rkey = 0 }, "INVALID"},
			"region wraps":       {func(q *mcrdmav1.PrepareRequest) { q.Regions[0].Va = 1<<64 - 50 }, "INVALID"},
			"vast region":        {func(q *mcrdmav1.PrepareRequest) { q.Regions[0].Length = 1 << 41 }, "INVALID"},
			"long region name":   {func(q *mcrdmav1.PrepareRequest) { q.Regions[0].Name = strings.Repeat("x", 999) }, "INVALID"},
		} {
			req := prepareRequest()
			tt.change(req)
			_, err := rpc.Prepare(t.Context(), req)
			if reason, host, _ := reasonOf(err); reason != tt.reason || host != "h2" {
				t.Errorf("%s: %v, want %s", name, err, tt.reason)
			}
		}
		if len(b.attached) > 0 {
			t.Error("the application was bothered")
		}
		r.wantNothing()
		// The same again is answered as before; another content, or an older formation, is not.
		prepare := func(change func(*mcrdmav1.PrepareRequest)) string {
			req := prepareRequest()
			req.Formation = 2
			change(req)
			res, err := rpc.Prepare(t.Context(), req)
			reason, _, _ := reasonOf(err)
			if err == nil && (res.GetHost() != "h2" || res.GetQpn() == 0 || res.GetVersion() != 1 || res.GetMtu() != 1024 || res.GetRack() != 1 || len(res.GetRegions()) != 1) {
				t.Errorf("%v", res)
			}
			return reason
		}
		commit := func(n uint32) string {
			_, err := rpc.Commit(t.Context(), &mcrdmav1.CommitRequest{Address: "127.9.0.2", Formation: &mcrdmav1.FormationInfo{Group: prepareRequest().GetGroup(), Formation: n}})
			reason, _, _ := reasonOf(err)
			return reason
		}
		for i, step := range []struct{ got, want string }{
			{commit(2), "NO_SERVICE"},
			{prepare(func(*mcrdmav1.PrepareRequest) {}), ""},
			{prepare(func(q *mcrdmav1.PrepareRequest) { q.Timeout = nil }), ""},
			{prepare(func(q *mcrdmav1.PrepareRequest) { q.Connection.Psn++ }), "STALE"},
			{prepare(func(q *mcrdmav1.PrepareRequest) { q.Formation = 1 }), "STALE"},
			{prepare(func(q *mcrdmav1.PrepareRequest) { q.Formation = 3; q.Regions[0].Length++ }), "INVALID"},
			{commit(3), "NO_SERVICE"},
			{commit(2), ""},
			{commit(2), ""},
			{prepare(func(q *mcrdmav1.PrepareRequest) { q.Formation = 3 }), ""},
			{commit(3), ""},
			{commit(2), "NO_SERVICE"},
		} {
			if step.got != step.want {
				t.Errorf("step %d: %q, want %q", i, step.got, step.want)
			}
		}
		if n := b.openMemberships(); n != 1 {
			r.until("one is left", func() bool { return b.openMemberships() == 1 })
		}
		// Only that host's memberships are dropped, and a nonsensical reason is none.
		if _, err := rpc.Drop(t.Context(), &mcrdmav1.DropRequest{Group: prepareRequest().GetGroup(), Address: "127.9.0.3"}); err == nil {
			t.Error("dropped for another host")
		}
		if _, err := rpc.Drop(t.Context(), &mcrdmav1.DropRequest{Group: prepareRequest().GetGroup(), Address: "127.9.0.2", Reason: 99}); err != nil {
			t.Error(err)
		}
		if d := b.detachment(3); d.GetReason() != mcrdmav1.Detached_REASON_ABORTED {
			t.Errorf("%v", d)
		}
		res, err := rpc.Beat(t.Context(), &mcrdmav1.BeatRequest{Groups: []*mcrdmav1.Heartbeat{{Group: prepareRequest().GetGroup(), Formation: 3, Address: "127.9.0.2"}}})
		if err != nil || len(res.GetGone()) != 1 || res.GetGone()[0].GetReason() == "" || res.GetBoot() == 0 {
			t.Errorf("%v, %v", res, err)
		}
		r.wantNothing()
	})
}

// TestBadAnswers: what an application may answer.
func TestBadAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		b := r.host(2).receiver()
		rpc := r.host(2).caller(identity.Files{})
		b.setAccept(func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest { return nil })
		// Without an answer, the sender learns of it in time, and the application learns that
		// the request has ended.
		req := prepareRequest()
		req.Group.Number, req.Timeout = 7, durationpb.New(50*time.Millisecond)
		err := second(rpc.Prepare(t.Context(), req))
		if reason, _, _ := reasonOf(err); reason != "TIMEOUT" {
			t.Errorf("%v", err)
		}
		if d := b.detachment(1); d.GetReason() != mcrdmav1.Detached_REASON_ABORTED {
			t.Errorf("%v", d)
		}
		r.wantNothing()
		b.mu.Lock()
		clear(b.attached)
		b.mu.Unlock()
		done := make(chan error, 1)
		go func() { done <- second(rpc.Prepare(t.Context(), prepareRequest())) }()
		var ask *mcrdmav1.AttachRequested
		r.until("it is asked", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, ask = range b.attached {
			}
			return ask != nil
		})
		answer := func(change func(*mcrdmav1.AnswerAttachRequest)) string {
			ans := willing(ask)
			ans.Token, ans.Attach = b.token, ask.GetAttach()
			change(ans)
			_, err := b.rpc.AnswerAttach(t.Context(), ans)
			reason, _, _ := reasonOf(err)
			return reason
		}
		for name, tt := range map[string]struct {
			change func(*mcrdmav1.AnswerAttachRequest)
			want   string
		}{
			"MC_ID":          {func(a *mcrdmav1.AnswerAttachRequest) { a.Qpn = 0x800000 }, "INVALID"},
			"QPN 1":          {func(a *mcrdmav1.AnswerAttachRequest) { a.Qpn = 1 }, "INVALID"},
			"nothing":        {func(a *mcrdmav1.AnswerAttachRequest) { a.Qpn, a.Bootstrap = 0, "" }, "INVALID"},
			"no regions":     {func(a *mcrdmav1.AnswerAttachRequest) { a.Regions = nil }, "INVALID"},
			"more regions":   {func(a *mcrdmav1.AnswerAttachRequest) { a.Regions = append(a.Regions, a.Regions...) }, "INVALID"},
			"more without":   {func(a *mcrdmav1.AnswerAttachRequest) { a.Qpn, a.Regions = 0, append(a.Regions, a.Regions...) }, "INVALID"},
			"region wraps":   {func(a *mcrdmav1.AnswerAttachRequest) { a.Regions[0].Va = 1<<64 - 1 }, "INVALID"},
			"transport":      {func(a *mcrdmav1.AnswerAttachRequest) { a.Transport = "x" }, "INVALID"},
			"bootstrap":      {func(a *mcrdmav1.AnswerAttachRequest) { a.Bootstrap = "x" }, "INVALID"},
			"port 0":         {func(a *mcrdmav1.AnswerAttachRequest) { a.Bootstrap = "1.2.3.4:0" }, "INVALID"},
			"port too large": {func(a *mcrdmav1.AnswerAttachRequest) { a.Bootstrap = "1.2.3.4:70000" }, "INVALID"},
			"long bootstrap": {func(a *mcrdmav1.AnswerAttachRequest) { a.Bootstrap = strings.Repeat("x", 400) + ":1" }, "INVALID"},
			"another attach": {func(a *mcrdmav1.AnswerAttachRequest) { a.Attach++ }, "NOT_FOUND"},
			"another token":  {func(a *mcrdmav1.AnswerAttachRequest) { a.Token = "x" }, "NOT_FOUND"},
		} {
			if got := answer(tt.change); got != tt.want {
				t.Errorf("%s: %q, want %q", name, got, tt.want)
			}
		}
		if got := answer(func(*mcrdmav1.AnswerAttachRequest) {}); got != "" {
			t.Errorf("the good one: %s", got)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := answer(func(*mcrdmav1.AnswerAttachRequest) {}); got != "STALE" {
			t.Errorf("twice: %s", got)
		}
	})
}

// TestBadPeer: what another daemon answers is not believed either.
func TestBadPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := func() *mcrdmav1.PrepareResponse {
			return &mcrdmav1.PrepareResponse{Host: "h2", Qpn: 7, Mtu: 1024, Version: 1, Bootstrap: "1.2.3.4:5", Transport: "tcp",
				Regions: []*mcrdmav1.ReceiverRegion{{Rkey: 1, Va: 4096}, {Rkey: 2, Va: 8192}}}
		}
		r := newRig(t, 0, withSwitch)
		r.add(2)
		r.start(1)
		fake := &fakeHost{answer: good}
		fake.serve(t, r.host(2))
		a := r.host(1).app("")
		for name, tt := range map[string]struct {
			change func(*mcrdmav1.PrepareResponse)
			reason string
		}{
			"version":        {func(p *mcrdmav1.PrepareResponse) { p.Version = 2 }, "VERSION"},
			"no version":     {func(p *mcrdmav1.PrepareResponse) { p.Version = 0 }, "VERSION"},
			"MC_ID":          {func(p *mcrdmav1.PrepareResponse) { p.Qpn = 0x800000 }, "INVALID"},
			"MTU":            {func(p *mcrdmav1.PrepareResponse) { p.Mtu = 512 }, "MTU"},
			"fewer regions":  {func(p *mcrdmav1.PrepareResponse) { p.Regions = p.Regions[:1] }, "INVALID"},
			"more regions":   {func(p *mcrdmav1.PrepareResponse) { p.Regions = append(p.Regions, p.Regions...) }, "INVALID"},
			"nil region":     {func(p *mcrdmav1.PrepareResponse) { p.Regions[0] = nil; p.Qpn = 0; p.Bootstrap = "" }, "INVALID"},
			"transport":      {func(p *mcrdmav1.PrepareResponse) { p.Transport = "" }, "INVALID"},
			"bootstrap":      {func(p *mcrdmav1.PrepareResponse) { p.Bootstrap = "nowhere" }, "INVALID"},
			"empty":          {func(p *mcrdmav1.PrepareResponse) { *p = mcrdmav1.PrepareResponse{} }, "VERSION"},
			"endless name":   {func(p *mcrdmav1.PrepareResponse) { p.Host, p.Qpn = strings.Repeat("\xff", 5000), 1 }, "INVALID"},
			"all that it is": {func(*mcrdmav1.PrepareResponse) {}, ""},
		} {
			fake.set(func() *mcrdmav1.PrepareResponse { p := good(); tt.change(p); return p })
			res, err := a.rpc.CreateGroup(t.Context(), a.request())
			if name == "endless name" { // cannot even be sent
				if err == nil {
					t.Errorf("%s: accepted", name)
				}
				continue
			}
			if reason, _, _ := reasonOf(err); reason != tt.reason {
				t.Errorf("%s: %v, want %s", name, err, tt.reason)
			}
			if err == nil {
				a.closeGroup(res.GetFormation().GetGroup())
			} else if fake.dropped() == 0 {
				t.Errorf("%s: was not dropped", name)
			}
		}
		r.wantNothing()
	})
}
