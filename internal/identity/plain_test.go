package identity_test

import (
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/mcrdma/mcrdma/internal/identity"
)

func TestPlainTextBelievesClaims(t *testing.T) {
	s := serveFiles(t, identity.Files{})
	for _, c := range []struct {
		claim []grpc.DialOption
		want  string
		owns  []string
	}{
		{nil, "host:127.0.0.1 127.0.0.1", []string{"127.0.0.1", "127.3.2.1", "::1"}},
		{[]grpc.DialOption{identity.Claim(sw("torA"))}, "switch:torA 127.0.0.1", []string{"127.0.0.9"}},
		{[]grpc.DialOption{identity.Claim(identity.Identity{Role: identity.Admin, Name: "ops"})}, "admin:ops 127.0.0.1", nil},
		{[]grpc.DialOption{identity.Claim(host("h1", "10.1.0.11", "::ffff:10.2.0.11"))}, "host:h1 10.1.0.11 10.2.0.11",
			[]string{"10.1.0.11", "10.2.0.11", "::ffff:10.2.0.11", "127.0.0.1", "127.9.0.1"}},
	} {
		got, err := call(t, s, identity.Files{}, sw("any"), c.claim...)
		if err != nil || got != c.want {
			t.Errorf("%q, %v; want %s", got, err, c.want)
		}
		for _, a := range c.owns {
			if !s.last.Load().Owns(netip.MustParseAddr(a)) {
				t.Errorf("%s does not own %s", got, a)
			}
		}
		for _, a := range []string{"10.1.0.12", "::", "128.0.0.1"} {
			if s.last.Load().Owns(netip.MustParseAddr(a)) {
				t.Errorf("%s owns %s", got, a)
			}
		}
	}
}

func TestClaimsThatCannotBe(t *testing.T) {
	s := serveFiles(t, identity.Files{})
	conn := dial(t, s, insecure.NewCredentials())
	for words, claims := range map[string][]string{
		`\"torA\" is none of`:                {"torA"},
		`\"\" is none of`:                    {""},
		`\"any:torA\" is none of`:            {"any:torA"},
		"is not 1 to 253":                    {"switch:tor/A"},
		"is not an IP address":               {"host:h1 10.1.0.11  10.1.0.12"},
		`\"10.1.0.0/24\" is not an IP`:       {"host:h1 10.1.0.0/24"},
		`\"fe80::1%eth0\" is not an IP addr`: {"host:h1 fe80::1%eth0"},
		"more than 256 addresses":            {"host:h1" + strings.Repeat(" 10.1.0.11", 257)},
		"2 claims":                           {"host:h1", "host:h2"},
	} {
		ctx := t.Context()
		for _, c := range claims {
			ctx = metadata.AppendToOutgoingContext(ctx, "mcrdma-identity", c)
		}
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		says(t, err, "Unauthenticated", identity.ErrNoIdentity.Error(), strings.ReplaceAll(words, `\`, ""))
	}
	for _, bad := range []identity.Identity{{}, {Role: 9, Name: "x"}, sw(""), sw("a b"), sw("a\nb"), sw("ä"), sw(strings.Repeat("x", 254)), {Role: identity.Host, Name: "h", Addrs: []netip.Addr{{}}}} {
		_, err := call(t, s, identity.Files{}, identity.Identity{}, identity.Claim(bad))
		says(t, err, "Unauthenticated", identity.ErrNoIdentity.Error())
	}
	if _, err := call(t, s, identity.Files{}, identity.Identity{}, identity.Claim(sw(strings.Repeat("x", 253)))); err != nil {
		t.Error(err)
	}
}

// TestClaimedAddresses: a daemon whose connections come from another address than its
// device's owns both.
func TestClaimedAddresses(t *testing.T) {
	at := func(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	for _, c := range []struct {
		from       net.Addr
		claim      string
		want       string
		not, truly string
	}{
		{at("192.0.2.11:99"), "host:h1 10.1.0.11", "host:h1 10.1.0.11 192.0.2.11", "10.1.0.12", "10.1.0.11"},
		{at("192.0.2.11:99"), "host:h1 10.1.0.11", "host:h1 10.1.0.11 192.0.2.11", "127.0.0.1", "192.0.2.11"},
		{at("10.1.0.11:99"), "host:h1 10.1.0.11", "host:h1 10.1.0.11", "10.1.0.12", "10.1.0.11"},
		{at("10.1.0.11:99"), "switch:torA", "switch:torA 10.1.0.11", "127.0.0.1", "10.1.0.11"},
		{at("[::ffff:10.1.0.11]:99"), "host:h1", "host:h1 10.1.0.11", "127.0.0.1", "10.1.0.11"},
		{at("[::1]:99"), "host:h1 10.1.0.12", "host:h1 10.1.0.12", "10.1.0.11", "127.7.7.7"},
	} {
		id, err := identity.Claimed(c.from, c.claim)
		if err != nil || id.String() != c.want || id.Owns(netip.MustParseAddr(c.not)) || !id.Owns(netip.MustParseAddr(c.truly)) {
			t.Errorf("%v claims %s: %v, %v", c.from, c.claim, id, err)
		}
	}
	if _, err := identity.Claimed(&net.UnixAddr{Name: "x"}, "host:h1"); !errors.Is(err, identity.ErrNoIdentity) {
		t.Errorf("by a unix socket: %v", err)
	}
}

func TestRoles(t *testing.T) {
	if (identity.Identity{}).Is(0) || !sw("x").Is(identity.Switch) || sw("x").Is(identity.Host) || sw("x").Is() || !sw("x").Is(identity.Host, identity.Switch) {
		t.Error("Is")
	}
	if identity.Admin.String() != "admin" || identity.Role(9).String() != "role 9" {
		t.Error("String")
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"switch:torA", "host:h1 10.1.0.11", "host:h1 10.1.0.11 ::ffff:1.2.3.4", "admin:", "any:x", "host:h1 ", ":", "host:a:b"} {
		f.Add(s)
	}
	from := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.1.0.11:99"))
	f.Fuzz(func(t *testing.T, s string) {
		id, err := identity.Parse(s)
		claimed, err2 := identity.Claimed(from, s)
		if err != nil {
			if !errors.Is(err, identity.ErrNoIdentity) || !errors.Is(err2, identity.ErrNoIdentity) || id.Role != 0 || claimed.Role != 0 {
				t.Fatalf("%v, %v: %v, %v", id, claimed, err, err2)
			}
			return
		}
		if !id.Is(identity.Host, identity.Switch, identity.Admin) || id.Name == "" || strings.ContainsAny(id.Name, " :\x00\n\u00e4") {
			t.Fatalf("%+v", id)
		}
		again, err := identity.Parse(id.String())
		if err != nil || again.String() != id.String() {
			t.Fatalf("%v, again %v, %v", id, again, err)
		}
		if err2 != nil || claimed.Name != id.Name || !claimed.Owns(netip.MustParseAddr("10.1.0.11")) || slices.ContainsFunc(id.Addrs, func(a netip.Addr) bool { return !claimed.Owns(a) }) {
			t.Fatalf("%v claims %v, %v", from, claimed, err2)
		}
	})
}

func FuzzFromCert(f *testing.F) {
	f.Add("mcrdma:host:h1", "spiffe://example.org/x", []byte{10, 1, 0, 11})
	f.Add("MCRDMA:switch:x", "mcrdma:admin:x", []byte{1, 15: 0})
	f.Add("mcrdma://host/x", "mcrdma:host:a%20b", []byte{})
	f.Fuzz(func(t *testing.T, one, two string, ip []byte) {
		c := &x509.Certificate{IPAddresses: []net.IP{ip}}
		for _, s := range []string{one, two} {
			if u, err := url.Parse(s); err == nil {
				c.URIs = append(c.URIs, u)
			}
		}
		id, err := identity.FromCert(c)
		if err != nil {
			if !errors.Is(err, identity.ErrNoIdentity) || id.Role != 0 {
				t.Fatalf("%v, %v", id, err)
			}
			return
		}
		if again, err := identity.Parse(id.String()); err != nil || again.String() != id.String() {
			t.Fatalf("%v, again %v, %v", id, again, err)
		}
		named := 0
		for _, u := range c.URIs {
			if u.Scheme == "mcrdma" {
				named++
			}
		}
		if named != 1 {
			t.Fatalf("%v of %d names", id, named)
		}
	})
}
