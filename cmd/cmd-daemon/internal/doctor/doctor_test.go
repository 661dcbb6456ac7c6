package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/findings"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

var addr = netip.MustParseAddr

// well returns facts without findings.
func well() Facts {
	c := &config.Config{Name: "h1", Address: addr("10.1.0.11"), TLS: config.TLS{Cert: "h1.crt", Key: "h1.key", CA: "ca.crt"}}
	c.SetDefaults()
	return Facts{
		Now: noon, Config: c,
		Daemon: &mcrdmav1.GetDaemonResponse{Host: "h1", Address: "10.1.0.11",
			Switch:   &mcrdmav1.SwitchLink{Name: "torA", Agent: "192.0.2.1:9560", Reachable: true},
			Peers:    []*mcrdmav1.PeerLink{{Host: "h2", State: "ok"}, {Host: "h3"}},
			Sessions: []*mcrdmav1.SessionInfo{{Program: "x"}}},
		Certificate: &Certificate{Own: identity.Identity{Role: identity.Host, Name: "h1", Addrs: []netip.Addr{addr("10.1.0.11")}},
			From: noon.Add(-time.Hour), Until: noon.Add(300 * 24 * time.Hour), CAUntil: noon.Add(3000 * 24 * time.Hour), KeyMode: 0o600},
		Links: []Link{{What: "daemon of host h2", Address: "10.1.0.12:9550"}},
		Host: Host{Addresses: []Address{{netip.MustParsePrefix("127.0.0.1/8"), "lo", 65536, true}, {netip.MustParsePrefix("10.1.0.11/24"), "eth0", 9000, true}},
			MemLock: 8 << 20, RawNet: true},
		Device: &Device{Attr: qp.DeviceAttr{Driver: "softroce", Addr: addr("10.1.0.11")}},
	}
}

// TestRules: each wrong fact is found, and reported with what to do.
func TestRules(t *testing.T) {
	if list := Diagnose(well()); len(list) > 0 {
		t.Fatalf("%+v", list)
	}
	for _, c := range []struct {
		name string
		edit func(*Facts)
		want string // severity subject: what; a part of what to do
	}{
		{"dead daemon", func(f *Facts) { f.DaemonErr = errors.New("no"); f.Daemon = nil }, "error daemon: does not answer"},
		{"problem", func(f *Facts) { f.Daemon.Problems = []string{"is tired"} }, "warning daemon of h1: is tired"},
		{"no state is written", func(f *Facts) {
			f.Daemon.Problems = []string{"h1.db: no space"}
			f.Daemon.ProblemKinds = []mcrdmav1.ProblemKind{mcrdmav1.ProblemKind_PROBLEM_KIND_STATE_FILE}
		}, "error daemon of h1: h1.db: no space"},
		{"switch", func(f *Facts) { f.Daemon.Switch.Reachable = false }, "error switch torA: its agent at 192.0.2.1:9560 is not reachable"},
		{"silent peer", func(f *Facts) { f.Daemon.Peers[0].State = "silent" }, "warning host h2: its daemon at  is silent"},
		{"untrusted peer", func(f *Facts) { f.Daemon.Peers[0].State = "untrusted" }, "warning host h2: its daemon at  is untrusted; correct the certificates, here or there"},
		{"peer of a group", func(f *Facts) { f.Daemon.Peers[0].State = "down"; f.Daemon.Peers[0].Shared = 2 }, "error host h2: its daemon at  is down"},
		{"dead peer", func(f *Facts) { // reported once
			f.Daemon.Peers[0] = &mcrdmav1.PeerLink{Host: "h2", Daemon: f.Links[0].Address, State: "down", Shared: 2}
			f.Links[0].Err = errors.New("refused")
		}, "error daemon of host h2: cannot be reached at 10.1.0.12:9550; is in the way; groups and memberships that depend on it: 2"},
		{"dead agent", func(f *Facts) {
			f.Daemon.Switch.Reachable, f.Daemon.Problems = false, []string{"switch torA: its agent does not answer"}
			f.Links = append(f.Links, Link{What: "agent of switch torA", Address: "192.0.2.1:9560", Err: errors.New("refused")})
		}, "error agent of switch torA: cannot be reached at 192.0.2.1:9560; is in the way; meanwhile hosts relay"},
		{"dead daemon, and its address", func(f *Facts) {
			f.Daemon, f.DaemonErr = nil, errors.New("no")
			f.Links = append(f.Links, Link{What: "this host's daemon", Own: true, Err: errors.New("refused")})
		}, "error daemon: does not answer"},
		{"lost session", func(f *Facts) { f.Daemon.Sessions[0].Lost = true }, "note daemon of h1: 1 of 1 applications have not come back"},
		{"other daemon", func(f *Facts) { f.Daemon.Host = "h9" }, "error daemon: the one that answers is host h9"},
		{"plain text", func(f *Facts) { f.Certificate = nil; f.Config.Insecure = true }, "warning tls: all traffic is in plain text"},
		{"plain text on loopback", func(f *Facts) { f.Certificate = nil }, ""},
		{"agent without a switch", func(f *Facts) {
			f.Daemon.Switch = &mcrdmav1.SwitchLink{Name: "torA", Agent: "10.0.0.1:9560", Reachable: true, NotReady: "the switch is away"}
			f.Daemon.Problems = []string{"switch torA: the switch is away"}
		}, "error switch torA: its agent at 10.0.0.1:9560 takes no groups; switchctl doctor"},
		{"no certificate", func(f *Facts) { f.Certificate = &Certificate{Err: errors.New("no such file")} }, "error certificate: cannot be used"},
		{"another's", func(f *Facts) { f.Certificate.Own.Name = "h2" }, "error certificate: h1.crt is for host:h2 10.1.0.11"},
		{"another address", func(f *Facts) { f.Certificate.Own.Addrs = nil }, "error certificate: h1.crt is for host:h1"},
		{"a switch's", func(f *Facts) { f.Certificate.Own.Role = identity.Switch }, "error certificate: h1.crt is for switch:h1"},
		{"slow clock", func(f *Facts) { f.Certificate.From = noon.Add(90 * time.Second) }, "error certificate: is valid only from 2026-01-02 12:01:30 UTC on"},
		{"ended", func(f *Facts) { f.Certificate.Until = noon.Add(-time.Second) }, "error certificate: has ended"},
		{"ends soon", func(f *Facts) {
			f.Certificate.From, f.Certificate.Until = noon.Add(-100*24*time.Hour), noon.Add(13*24*time.Hour)
		}, "warning certificate: ends soon"},
		{"for a day", func(f *Facts) { f.Certificate.Until = noon.Add(23 * time.Hour) }, ""},
		{"CA ended", func(f *Facts) { f.Certificate.CAUntil = noon.Add(-time.Second) }, "error certificate: that of the CA has ended"},
		{"CA ends", func(f *Facts) { f.Certificate.CAUntil = noon.Add(40 * 24 * time.Hour) }, "warning certificate: that of the CA ends on"},
		{"open key", func(f *Facts) { f.Certificate.KeyMode = 0o640 }, "warning certificate: others can read the key h1.key (mode 0640)"},
		{"no address", func(f *Facts) { f.Host.Addresses = f.Host.Addresses[:1] }, "error address 10.1.0.11: is on no interface"},
		{"own network", func(f *Facts) {
			f.Host.Addresses, f.Config.Device = f.Host.Addresses[:1], "softroce:10.1.0.11/24,tunnel=127.0.0.1:1-127.0.0.1:2"
		}, ""},
		{"down", func(f *Facts) { f.Host.Addresses[1].Up = false }, "error interface eth0: is down"},
		{"tiny MTU", func(f *Facts) { f.Host.Addresses[1].MTU = 576 }, "error interface eth0: its MTU, 576, leaves room for 512 bytes"},
		{"usual MTU", func(f *Facts) { f.Host.Addresses[1].MTU = 1500 }, "note interface eth0: its MTU, 1500, allows packets of 1024 bytes"},
		{"loopback", func(f *Facts) {
			f.Config.Address, f.Daemon.Address, f.Device.Attr.Addr = addr("127.0.0.9"), "127.0.0.9", addr("127.0.0.9")
			f.Certificate.Own.Addrs[0] = addr("127.0.0.9")
		}, ""},
		{"no device", func(f *Facts) { f.Device.Err = qp.ErrDevice }, "error device softroce:10.1.0.11: cannot be used"},
		{"device in use", func(f *Facts) { f.Device.Err = fmt.Errorf("x: %w", qp.ErrAddrInUse) }, "note device softroce:10.1.0.11: is in use"},
		{"other device", func(f *Facts) { f.Device.Attr.Addr = addr("10.1.0.12") }, "error device softroce:10.1.0.11: has the address 10.1.0.12"},
		{"no capability", func(f *Facts) { f.Host.RawNet = false }, "note device softroce:10.1.0.11: cannot check ICRCs"},
		{"locked memory", func(f *Facts) { f.Config.Device = "ibverbs:mlx5_0" }, "warning RLIMIT_MEMLOCK: is 8192 KiB here"},
		{"more of it", func(f *Facts) { f.Config.Device = "ibverbs:mlx5_0"; f.Host.MemLock = 1 << 30 }, "note RLIMIT_MEMLOCK: is 1048576 KiB here"},
		{"unlimited", func(f *Facts) { f.Config.Device = "ibverbs:mlx5_0"; f.Host.Unlimited = true }, ""},
		{"read-only", func(f *Facts) { f.Disk = &Disk{ReadOnly: true, Free: 1 << 30} }, "error state /var/lib/mcrdma/daemon.db: is on a read-only file system; restart the daemon"},
		{"full", func(f *Facts) { f.Disk = &Disk{Free: 8 << 10} }, "warning state /var/lib/mcrdma/daemon.db: is on a file system with 8 KiB left; make room"},
		{"room", func(f *Facts) { f.Disk = &Disk{Free: 1 << 20} }, ""},
		{"slow beats", func(f *Facts) { f.Config.Beat.DeadAfter = 5 * time.Second }, "warning beat.dead_after: is 5s"},
		{"priority", func(f *Facts) { f.Host.Busy, f.Host.Ordinary = true, true }, "note priority of the daemon: is that of other processes"},
		{"priority of an idle machine", func(f *Facts) { f.Host.Ordinary = true }, ""},
		{"link", func(f *Facts) { f.Links[0].Err = errors.New("refused") }, "error daemon of host h2: cannot be reached at 10.1.0.12:9550"},
		{"own link", func(f *Facts) { f.Links[0].Err, f.Links[0].Own = errors.New("refused"), true }, "warning daemon of host h2: cannot be reached"},
	} {
		f := well()
		c.edit(&f)
		list := Diagnose(f)
		if c.want == "" && len(list) == 0 {
			continue
		}
		what, do, _ := strings.Cut(c.want, "; ")
		if len(list) != 1 || c.want == "" || !strings.HasPrefix(fmt.Sprintf("%v %s: %s", list[0].Severity, list[0].Subject, list[0].What), what) || !strings.Contains(list[0].Do, do) {
			t.Errorf("%s: %+v; want one, %q", c.name, list, c.want)
		}
	}
}

func TestOrder(t *testing.T) {
	f := well()
	f.Host.Addresses[1].MTU, f.Config.Beat.DeadAfter, f.DaemonErr = 1500, 5*time.Second, errors.New("no")
	list := Diagnose(f)
	if len(list) != 3 || list[0].Severity != findings.Error || list[2].Severity != findings.Note {
		t.Errorf("%+v", list)
	}
}

// serve runs a gRPC server that knows no services.
func serve(t testing.TB, creds credentials.TransportCredentials) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(creds))
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// TestCollect: the facts are right, also those from the network.
func TestCollect(t *testing.T) {
	own := testenv.Loopback()
	ca, other := identitytest.New(t), identitytest.New(t)
	f := ca.Host("h1", own)
	server := func(f identity.Files) string {
		creds, err := f.Server()
		if err != nil {
			t.Fatal(err)
		}
		return serve(t, creds)
	}
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	// A server that trusts a CA other than the issuer of its certificate.
	half := ca.Host("h5", own)
	half.CA = other.Host("x").CA
	cfg := &config.Config{Name: "h1", Address: own, TLS: config.TLS{Cert: f.Cert, Key: f.Key, CA: f.CA}, Listen: server(f),
		Switch: config.Switch{Name: "torA", Agent: server(ca.Switch("torB"))},
		Hosts: []config.Host{
			{Name: "h2", Daemon: server(ca.Host("h2")), Address: addr("127.9.9.9")},
			{Name: "h3", Daemon: dead.Addr().String(), Address: own},
			{Name: "h4", Daemon: server(other.Host("h4", own)), Address: own},
			{Name: "h5", Daemon: server(half), Address: own},
			{Name: "h6", Daemon: server(ca.Host("h6", own)), Address: own},
			{Name: "h7", Daemon: server(identity.Files{}), Address: own},
		}}
	cfg.SetDefaults()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	facts := Collect(ctx, cfg, true)
	if c := facts.Certificate; c == nil || c.Err != nil || c.Own.Name != "h1" || c.From.After(time.Now()) || c.Until.Before(time.Now()) || c.CAUntil.Before(c.From) || c.KeyMode != 0o600 {
		t.Errorf("%+v", facts.Certificate)
	}
	for i, want := range []string{"", "should be host:h2 127.9.9.9", "connection refused", "not trusted", errRejected.Error(), "", "does not speak TLS", "the server is switch:torB"} {
		got := fmt.Sprint(facts.Links[i].Err)
		if want == "" && facts.Links[i].Err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %q", facts.Links[i].What, got, want)
		}
	}
	if facts.Device == nil || facts.Device.Err != nil || facts.Device.Attr.Addr != own {
		t.Errorf("%+v", facts.Device)
	}
	lo := false
	for _, a := range facts.Host.Addresses {
		lo = lo || a.Prefix == netip.MustParsePrefix("127.0.0.1/8") && a.Up && a.MTU > 1500
	}
	if !lo {
		t.Errorf("%+v", facts.Host)
	}
	cfg.TLS = config.TLS{}
	plain := Collect(ctx, cfg, false)
	if plain.Device != nil || plain.Certificate != nil || !errors.Is(plain.Links[0].Err, identity.ErrWantsTLS) || plain.Links[6].Err != nil || plain.Links[2].Err == nil {
		t.Errorf("%+v", plain)
	}
	cfg.TLS = config.TLS{Cert: "/no", Key: "/no", CA: "/no"}
	if c := Collect(ctx, cfg, false).Certificate; c == nil || !errors.Is(c.Err, identity.ErrFiles) {
		t.Errorf("%+v", c)
	}
}
