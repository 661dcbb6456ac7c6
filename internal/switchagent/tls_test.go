package switchagent

import (
	"context"
	"crypto/x509"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A security is how callers prove their identity.
type security struct {
	agent  func(name string) func(*config.Config, *Options) // of a switch
	caller func(id identity.Identity) []grpc.DialOption     // of switch sw1
}

func plainText(testing.TB) security {
	return security{
		agent: func(string) func(*config.Config, *Options) { return func(*config.Config, *Options) {} },
		caller: func(id identity.Identity) []grpc.DialOption {
			return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), identity.Claim(id)}
		},
	}
}

func withTLS(t testing.TB) security {
	ca := identitytest.New(t)
	return security{
		agent: func(name string) func(*config.Config, *Options) { return tlsFiles(ca.Switch(name)) },
		caller: func(id identity.Identity) []grpc.DialOption {
			creds, err := ca.Issue(id).Client(aSwitch("sw1"))
			if err != nil {
				t.Fatal(err)
			}
			return []grpc.DialOption{grpc.WithTransportCredentials(creds)}
		},
	}
}

func tlsFiles(f identity.Files) func(*config.Config, *Options) {
	return func(c *config.Config, _ *Options) { c.TLS = config.TLS{Cert: f.Cert, Key: f.Key, CA: f.CA} }
}

func (l *line) call(i int, opts ...grpc.DialOption) *grpc.ClientConn {
	l.t.Helper()
	c, err := grpc.NewClient(l.nodes[i-1].addr, append(opts, l.inMemory())...)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = c.Close() })
	return c
}

// callers are all that might call sw1's agent about a group of host 10.1.0.11.
var callers = []identity.Identity{
	aHost(hostAddr(1, 1)),
	aHost(hostAddr(1, 2), hostAddr(1, 1)),
	aHost(hostAddr(1, 2)),
	aHost(),
	aSwitch("sw2"),
	aSwitch("sw1"),
	aSwitch("sw9"), // not in the configuration
	{Role: identity.Admin, Name: "ops"},
}

// TestWhoMayDoWhat makes every kind of caller call everything, in plain text and by TLS.
func TestWhoMayDoWhat(t *testing.T) {
	for name, f := range map[string]func(testing.TB) security{"plain text": plainText, "TLS": withTLS} {
		testenv.Bubble(t, name, func(t *testing.T) {
			l := newLine(t, 2)
			sec := f(t)
			l.start(1, sec.agent("sw1"))
			l.start(2, sec.agent("sw2"))
			whoMayDoWhat(t, l, sec)
		})
	}
}

func whoMayDoWhat(t *testing.T, l *line, sec security) {
	mine := aGroup(hostAddr(1, 1), 1, hostAddr(1, 5), hostAddr(2, 1), hostAddr(2, 2))
	more := aGroup(hostAddr(1, 1), 2, hostAddr(1, 5))
	admin := mcrdmav1.NewSwitchGroupsClient(l.call(1, sec.caller(identity.Identity{Role: identity.Admin, Name: "root"})...))
	install := func() {
		for _, g := range []*mcrdmav1.Group{mine, aGroup(hostAddr(1, 4), 1, hostAddr(1, 5))} {
			if _, err := admin.Install(t.Context(), &mcrdmav1.InstallRequest{Group: g}); err != nil {
				t.Fatal(err)
			}
		}
	}
	install()
	type clients struct {
		groups mcrdmav1.SwitchGroupsClient
		peer   mcrdmav1.SwitchPeerClient
		status mcrdmav1.SwitchStatusClient
	}
	owner := func(id identity.Identity) bool { return id.Is(identity.Admin) || id.Owns(hostAddr(1, 1)) }
	peer := func(id identity.Identity) bool { return id.Is(identity.Switch) && id.Name == "sw2" }
	anyClient := func(identity.Identity) bool { return true }
	key := &mcrdmav1.GroupKey{Source: "10.2.0.11", McId: 9}
	for _, x := range []struct {
		name string
		may  func(identity.Identity) bool
		call func(context.Context, clients) error
		back func() // undoes it
	}{
		{"install", owner, func(ctx context.Context, c clients) error {
			_, err := c.groups.Install(ctx, &mcrdmav1.InstallRequest{Group: more})
			return err
		}, func() { _, _ = admin.Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: more.Key}) }},
		{"install again", owner, func(ctx context.Context, c clients) error {
			_, err := c.groups.Install(ctx, &mcrdmav1.InstallRequest{Group: mine})
			return err
		}, nil},
		{"update", owner, func(ctx context.Context, c clients) error {
			_, err := c.groups.Update(ctx, &mcrdmav1.UpdateRequest{Key: mine.Key, Receivers: mine.Receivers[:2]})
			return err
		}, func() { _, _ = admin.Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: mine.Key}); install() }},
		{"remove", owner, func(ctx context.Context, c clients) error {
			_, err := c.groups.Remove(ctx, &mcrdmav1.RemoveRequest{Key: mine.Key})
			return err
		}, install},
		{"renew", owner, func(ctx context.Context, c clients) error {
			_, err := c.groups.Renew(ctx, &mcrdmav1.RenewRequest{Keys: []*mcrdmav1.GroupKey{mine.Key}})
			return err
		}, nil},
		{"get", owner, func(ctx context.Context, c clients) error {
			_, err := c.groups.Get(ctx, &mcrdmav1.GetRequest{Key: mine.Key, Counters: true})
			return err
		}, nil},
		{"hold", peer, func(ctx context.Context, c clients) error {
			_, err := c.peer.Hold(ctx, &mcrdmav1.HoldRequest{Group: key, Generation: 1, Via: []string{"sw2"},
				Sequence:    math.MaxUint64, // or a sync of the true sw2, which does not know of it, ends it
				Destination: "10.1.0.15", Receivers: []*mcrdmav1.Receiver{aReceiver(hostAddr(1, 5), 1), aReceiver(hostAddr(1, 6), 2)}})
			return err
		}, nil},
		{"release", peer, func(ctx context.Context, c clients) error {
			_, err := c.peer.Release(ctx, &mcrdmav1.ReleaseRequest{Group: key, Destination: "10.1.0.15", Sequence: math.MaxUint64})
			return err
		}, nil},
		{"sync", peer, func(ctx context.Context, c clients) error {
			_, err := c.peer.Sync(ctx, &mcrdmav1.SyncRequest{Sequence: 1})
			return err
		}, nil},
		{"list", anyClient, func(ctx context.Context, c clients) error {
			_, err := c.groups.List(ctx, &mcrdmav1.ListRequest{})
			return err
		}, nil},
		{"status", anyClient, func(ctx context.Context, c clients) error {
			_, err := c.status.GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
			return err
		}, nil},
	} {
		// First all callers that may not, so that nothing changes.
		before := l.snapshot()
		for _, may := range []bool{false, true} {
			for _, id := range callers {
				if x.may(id) != may {
					continue
				}
				conn := l.call(1, sec.caller(id)...)
				err := x.call(t.Context(), clients{mcrdmav1.NewSwitchGroupsClient(conn), mcrdmav1.NewSwitchPeerClient(conn), mcrdmav1.NewSwitchStatusClient(conn)})
				what := fmt.Sprintf("%v: %s", id, x.name)
				if !may {
					refused{codes.PermissionDenied, "DENIED", "sw1", []string{"not allowed", id.Role.String()}}.check(t, what, err)
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if x.back != nil {
					x.back()
				}
			}
			if !may {
				l.unchanged(x.name, before)
			}
		}
	}
	sees(t, l, sec)
}

// sees checks that hosts see their own groups only, by List and by Watch.
func sees(t *testing.T, l *line, sec security) {
	for _, x := range []struct {
		id     identity.Identity
		source string
		want   []string
	}{
		{aHost(hostAddr(1, 1)), "", []string{"10.1.0.11"}},
		{aHost(hostAddr(1, 1)), "10.1.0.14", nil},
		{aHost(hostAddr(1, 4), hostAddr(1, 1)), "", []string{"10.1.0.11", "10.1.0.14"}},
		{aHost(hostAddr(1, 4), hostAddr(1, 1)), "10.1.0.14", []string{"10.1.0.14"}},
		{aHost(hostAddr(1, 2)), "", nil},
		{aHost(hostAddr(1, 2)), "10.1.0.11", nil},
		{identity.Identity{Role: identity.Admin, Name: "ops"}, "", []string{"10.1.0.11", "10.1.0.14"}},
		{identity.Identity{Role: identity.Admin, Name: "ops"}, "10.1.0.11", []string{"10.1.0.11"}},
		{aSwitch("sw2"), "", []string{"10.1.0.11", "10.1.0.14"}},
	} {
		c := mcrdmav1.NewSwitchGroupsClient(l.call(1, sec.caller(x.id)...))
		list, err := c.List(t.Context(), &mcrdmav1.ListRequest{Source: x.source})
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, g := range list.GetGroups() {
			have = append(have, g.GetGroup().GetKey().GetSource())
		}
		if !slices.Equal(have, x.want) {
			t.Errorf("%v lists %v, want %v", x.id, have, x.want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		w, err := c.Watch(ctx, &mcrdmav1.WatchRequest{Source: x.source})
		if err != nil {
			t.Fatal(err)
		}
		have = nil
		for _, e := range expectEvents(t, w, append(slices.Repeat([]mcrdmav1.WatchResponse_Type{mcrdmav1.WatchResponse_TYPE_INSTALLED}, len(x.want)), mcrdmav1.WatchResponse_TYPE_SYNCED)...) {
			if g := e.GetGroup(); g != nil {
				have = append(have, g.GetGroup().GetKey().GetSource())
			}
		}
		// Later events, too: the last one is one that it may see.
		a := l.nodes[0].agent
		for _, source := range []string{"10.1.0.15", "10.1.0.11", "10.1.0.14", "10.1.0.12"} {
			a.tell(mcrdmav1.WatchResponse_TYPE_REMOVED, groups.View{Info: groups.Info{Group: bifurcation.Group{Source: netip.MustParseAddr(source)}}})
		}
		if !slices.Equal(have, x.want) {
			t.Errorf("%v watches %v, want %v", x.id, have, x.want)
		}
		if x.id.Is(identity.Host) {
			var told []string
			for _, e := range expectEvents(t, w, slices.Repeat([]mcrdmav1.WatchResponse_Type{mcrdmav1.WatchResponse_TYPE_REMOVED}, ownSources(x.id, x.source))...) {
				told = append(told, e.GetGroup().GetGroup().GetKey().GetSource())
			}
			for _, s := range told {
				if !x.id.Owns(netip.MustParseAddr(s)) {
					t.Errorf("%v is notified of %s", x.id, s)
				}
			}
		}
		cancel()
	}
}

// ownSources counts the events above that a host may see, and wants to.
func ownSources(id identity.Identity, source string) int {
	n := 0
	for _, a := range []string{"10.1.0.15", "10.1.0.11", "10.1.0.14", "10.1.0.12"} {
		if id.Owns(netip.MustParseAddr(a)) && (source == "" || source == a) {
			n++
		}
	}
	return n
}

// TestStrangersAreKeptOut: with TLS, no client gets in without a certificate of the CA,
// and an identity claimed beside a certificate does not count.
func TestStrangersAreKeptOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		ca, other := identitytest.New(t), identitytest.New(t)
		l.start(1, tlsFiles(ca.Switch("sw1")))
		group := aGroup(hostAddr(1, 1), 1, hostAddr(1, 5))
		before := l.snapshot()
		client := func(f identity.Files) grpc.DialOption {
			creds, err := f.Client(aSwitch("sw1"))
			if err != nil {
				t.Fatal(err)
			}
			return grpc.WithTransportCredentials(creds)
		}
		admin := identity.Identity{Role: identity.Admin, Name: "ops"}
		mixed := other.Admin("ops") // its certificate is another CA's, and it trusts ours
		mixed.CA = ca.Admin("x").CA
		for name, x := range map[string]struct {
			opts []grpc.DialOption
			code codes.Code
		}{
			"plain text":               {[]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), identity.Claim(admin)}, codes.Unavailable},
			"other CA on both sides":   {[]grpc.DialOption{client(other.Admin("ops"))}, codes.Unavailable},
			"certificate of other CA":  {[]grpc.DialOption{client(mixed)}, codes.Unavailable},
			"host that claims more":    {[]grpc.DialOption{client(ca.Host("h", hostAddr(1, 2))), identity.Claim(admin)}, codes.PermissionDenied},
			"host without addresses":   {[]grpc.DialOption{client(ca.Host("h")), identity.Claim(aHost(hostAddr(1, 1)))}, codes.PermissionDenied},
			"another server is wanted": {[]grpc.DialOption{wantOther(t, ca)}, codes.Unavailable},
		} {
			c := mcrdmav1.NewSwitchGroupsClient(l.call(1, x.opts...))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err := c.Install(ctx, &mcrdmav1.InstallRequest{Group: group})
			cancel()
			if status.Code(err) != x.code {
				t.Errorf("%s: %v; want %v", name, err, x.code)
			}
			l.unchanged(name, before)
		}
		if _, err := mcrdmav1.NewSwitchGroupsClient(l.call(1, client(ca.Host("h", hostAddr(1, 1))))).Install(t.Context(), &mcrdmav1.InstallRequest{Group: group}); err != nil {
			t.Error(err)
		}
	})
}

func wantOther(t testing.TB, ca *identitytest.CA) grpc.DialOption {
	creds, err := ca.Admin("ops").Client(aSwitch("sw2"))
	if err != nil {
		t.Fatal(err)
	}
	return grpc.WithTransportCredentials(creds)
}

// TestAgentsKnowEachOther: an agent hands groups to another only if that one has the
// certificate of the switch that it should be.
func TestAgentsKnowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		ca := identitytest.New(t)
		l.start(1, tlsFiles(ca.Switch("sw1")))
		l.start(2, tlsFiles(ca.Switch("sw9")))
		creds, err := ca.Admin("ops").Client(aSwitch("sw1"))
		if err != nil {
			t.Fatal(err)
		}
		before := l.snapshot()
		c := mcrdmav1.NewSwitchGroupsClient(l.call(1, grpc.WithTransportCredentials(creds)))
		g := aGroup(hostAddr(1, 1), 1, hostAddr(2, 1), hostAddr(2, 2))
		_, err = c.Install(t.Context(), &mcrdmav1.InstallRequest{Group: g})
		refused{codes.Unavailable, "PEER", "sw1", []string{"switch sw2", "switch:sw9", "switch:sw2"}}.check(t, "an impostor", err)
		l.unchanged("an impostor", before)
		l.nodes[1].kill()
		l.start(2, tlsFiles(ca.Switch("sw2")))
		eventually(t, "sw2 is known", func() bool {
			_, err = c.Install(t.Context(), &mcrdmav1.InstallRequest{Group: g})
			return err == nil || !strings.Contains(err.Error(), "sw9") && status.Code(err) != codes.Unavailable
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: g.Key}); err != nil {
			t.Fatal(err)
		}
		l.noLeftovers()
	})
}

// TestCertificateInStatus: an agent whose certificate others do not accept says so, as it is on disk.
func TestCertificateInStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		ca := identitytest.New(t)
		f := ca.Switch("sw1")
		l.start(1, tlsFiles(f))
		creds, err := ca.Admin("ops").Client(aSwitch("sw1"))
		if err != nil {
			t.Fatal(err)
		}
		c := mcrdmav1.NewSwitchStatusClient(l.call(1, grpc.WithTransportCredentials(creds)))
		for _, tt := range []struct {
			name string
			edit func(*x509.Certificate)
			want string
		}{
			{"sw1", func(*x509.Certificate) {}, ""},
			{"sw1", func(c *x509.Certificate) {
				c.NotBefore, c.NotAfter = time.Now().Add(-24*time.Hour), time.Now().Add(time.Hour)
			}, "ends soon, on " + time.Now().Add(time.Hour).UTC().Format(time.DateTime)},
			{"sw1", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, "has ended"},
			{"sw2", func(*x509.Certificate) {}, "is for switch:sw2, and should be for switch:sw1"},
		} {
			ca.Reissue(f, aSwitch(tt.name), tt.edit)
			s, err := c.GetStatus(t.Context(), &mcrdmav1.GetStatusRequest{})
			if got := strings.Join(s.GetProblems(), "; "); err != nil || (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("%q, %v, want %q", got, err, tt.want)
			}
		}
	})
}

// TestBadCertificatesStopTheAgent: it does not serve in plain text instead.
func TestBadCertificatesStopTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		f := identitytest.New(t).Switch("sw1")
		f.Key += ".missing"
		cfg := l.config(1)
		cfg.Listen = "127.0.0.1:0"
		tlsFiles(f)(cfg, nil)
		a, err := New(t.Context(), cfg, Options{})
		if err == nil {
			err = a.Run(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), f.Key) {
			t.Errorf("%v", err)
		}
	})
}

// TestPeerThatDenies: an agent that answers, and does not let this one do anything, is not
// reachable for it.
func TestPeerThatDenies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		f := l.fake(2)
		f.onSync(func(context.Context, *mcrdmav1.SyncRequest) (*mcrdmav1.SyncResponse, error) {
			return nil, toStatus("sw2", fmt.Errorf("%w: who is sw1?", ErrDenied))
		})
		l.start(1)
		eventually(t, "sw1 says so", func() bool {
			p := l.nodes[0].agent.peerStatus(nil)[0]
			return !p.GetReachable() && strings.Contains(p.GetError(), "who is sw1?")
		})
	})
}
