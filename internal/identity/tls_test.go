package identity_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
)

func TestCertificatesSayWhoCalls(t *testing.T) {
	ca := identitytest.New(t)
	s := serveFiles(t, ca.Switch("torA"))
	for want, f := range map[string]identity.Files{
		"switch:torB":                 ca.Switch("torB"),
		"admin:ops":                   ca.Admin("ops"),
		"host:h1 10.1.0.11 10.2.0.11": ca.Host("h1", netip.MustParseAddr("10.1.0.11"), netip.MustParseAddr("10.2.0.11")),
	} {
		// What the metadata claim does not matter.
		got, err := call(t, s, f, sw("torA"), identity.Claim(host("liar", "10.9.9.9")))
		if err != nil || got != want {
			t.Errorf("%s: %q, %v", want, got, err)
		}
		if s.last.Load().Owns(netip.MustParseAddr("127.0.0.1")) {
			t.Errorf("%s owns a loopback address for being on loopback", want)
		}
	}
}

func TestServerMustBeTheExpectedOne(t *testing.T) {
	ca := identitytest.New(t)
	s := serveFiles(t, ca.Host("h1", netip.MustParseAddr("10.1.0.11"), netip.MustParseAddr("10.2.0.11")))
	me := ca.Admin("ops")
	for _, good := range []identity.Identity{{}, {Role: identity.Host}, {Name: "h1"}, host("h1"), host("h1", "10.2.0.11"),
		host("", "10.2.0.11", "10.1.0.11"), host("", "::ffff:10.1.0.11")} {
		if _, err := call(t, s, me, good); err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}
	for _, wrong := range []identity.Identity{{Role: identity.Switch}, sw("h1"), host("h2"), host("H1"), host("h1", "10.3.0.11"),
		host("", "10.1.0.11", "10.3.0.11")} {
		_, err := call(t, s, me, wrong)
		says(t, err, "Unavailable", identity.ErrMismatch.Error(), "the server is host:h1 10.1.0.11 10.2.0.11, and should be "+wrong.String())
	}
}

func TestServersThatAreNotTrusted(t *testing.T) {
	ca, other := identitytest.New(t), identitytest.New(t)
	me := ca.Admin("ops")
	for name, c := range map[string]struct {
		files identity.Files
		words string
	}{
		"other CA":    {other.Switch("torA"), "signed by unknown authority"},
		"expired":     {ca.Issue(sw("torA"), expired), "expired"},
		"too early":   {ca.Issue(sw("torA"), early), "not yet valid"},
		"client only": {ca.Issue(sw("torA"), usage(x509.ExtKeyUsageClientAuth)), "key usage"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := call(t, serveFiles(t, c.files), me, sw("torA"))
			says(t, err, "Unavailable", identity.ErrUntrusted.Error(), c.words, "torA")
		})
	}
	t.Run("no identity", func(t *testing.T) {
		s := serve(t, grpc.Creds(raw(t, ca.Issue(sw("torA"), anonymous))))
		_, err := call(t, s, me, identity.Identity{})
		says(t, err, "Unavailable", identity.ErrNoIdentity.Error(), "names no mcrdma identity")
	})
	t.Run("plain text", func(t *testing.T) {
		_, err := call(t, serveFiles(t, identity.Files{}), me, sw("torA"))
		says(t, err, "Unavailable", "the other side does not speak TLS")
		if strings.Contains(err.Error(), "first record") {
			t.Errorf("in TLS's own words: %v", err)
		}
	})
	t.Run("plain text to TLS", func(t *testing.T) {
		_, err := call(t, serveFiles(t, ca.Switch("torA")), identity.Files{}, sw("torA"))
		says(t, err, "Unavailable", identity.ErrWantsTLS.Error())
	})
}

// TestBothSidesSay: where one side only has TLS, the server's log says so too.
func TestBothSidesSay(t *testing.T) {
	ca := identitytest.New(t)
	for want, f := range map[string]struct{ server, client identity.Files }{
		"does not speak TLS":                           {ca.Switch("torA"), identity.Files{}},
		"speaks TLS, and this side has no certificate": {identity.Files{}, ca.Host("h1")},
	} {
		creds, err := f.server.Server()
		if err != nil {
			t.Fatal(err)
		}
		said := make(chan error, 10)
		s := serve(t, grpc.Creds(identity.Watched(creds, func(err error) { said <- err })))
		if _, err := call(t, s, f.client, sw("torA")); err == nil {
			t.Errorf("%s: called", want)
		}
		if err := <-said; !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestClientsThatAreNotTrusted(t *testing.T) {
	ca, other := identitytest.New(t), identitytest.New(t)
	s := serveFiles(t, ca.Switch("torA"))
	me := func(edit ...func(*x509.Certificate)) identity.Files {
		return ca.Issue(host("h1", "10.1.0.11"), edit...)
	}
	if _, err := who(t, s, dial(t, s, raw(t, me()))); err != nil {
		t.Fatal("a good certificate:", err)
	}
	if got := s.certified.Load(); got != "host:h1 10.1.0.11, <nil>" {
		t.Errorf("a good certificate proves %q", got)
	}
	for name, c := range map[string]struct {
		files identity.Files
		words string
	}{
		"other CA":       {other.Host("h1"), "unknown certificate authority"},
		"no certificate": {identity.Files{}, "certificate required"},
		"expired":        {me(expired), "expired certificate"},
		"too early":      {me(early), "expired certificate"},
		"server only":    {me(usage(x509.ExtKeyUsageServerAuth)), "bad certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := who(t, s, dial(t, s, raw(t, c.files)))
			says(t, err, "Unavailable", c.words)
		})
	}
	t.Run("TLS 1.2", func(t *testing.T) {
		old := raw(t, me(), func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 })
		_, err := who(t, s, dial(t, s, old))
		says(t, err, "Unavailable", "protocol version not supported")
	})
	t.Run("own certificate expired", func(t *testing.T) {
		_, err := call(t, s, me(expired), sw("torA"))
		says(t, err, "Unavailable", "expired certificate")
	})
	t.Run("plain text", func(t *testing.T) {
		_, err := call(t, s, identity.Files{}, sw("torA"), identity.Claim(host("h1")))
		says(t, err, "Unavailable")
	})
	for name, c := range map[string]struct {
		edit  func(*x509.Certificate)
		words string
	}{
		"no identity":    {anonymous, "names no mcrdma identity"},
		"other scheme":   {uris("spiffe://example.org/h1"), "names no mcrdma identity"},
		"two":            {uris("mcrdma:host:h1", "mcrdma:admin:ops"), "names two identities, host:h1 and admin:ops"},
		"unknown role":   {uris("mcrdma:router:r1"), `"router:r1" is none of`},
		"hierarchical":   {uris("mcrdma://host/h1"), `"//host/h1" is none of`},
		"no name":        {uris("mcrdma:host:"), "is not 1 to 253"},
		"name with more": {uris("mcrdma:host:h1?x=1"), "is not 1 to 253"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := who(t, s, dial(t, s, raw(t, me(c.edit))))
			says(t, err, "Unauthenticated", identity.ErrNoIdentity.Error(), c.words)
			if got := s.certified.Load(); got != "no identity, <nil>" {
				t.Errorf("it proves %q", got)
			}
		})
	}
}

func anonymous(c *x509.Certificate) { c.URIs = nil }

func uris(list ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.URIs = nil
		for _, s := range list {
			u, err := url.Parse(s)
			if err != nil {
				panic(err)
			}
			c.URIs = append(c.URIs, u)
		}
	}
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	ca := identitytest.New(t)
	good, other := ca.Switch("torA"), ca.Switch("torB")
	junk := filepath.Join(t.TempDir(), "junk")
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := errors.Join(os.WriteFile(junk, []byte("no PEM"), 0o600), syscall.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files identity.Files
		words string
	}{
		"no key given":   {identity.Files{Cert: good.Cert, CA: good.CA}, "must all be given"},
		"no CA given":    {identity.Files{Cert: good.Cert, Key: good.Key}, "must all be given"},
		"missing":        {identity.Files{Cert: good.Cert + "x", Key: good.Key, CA: good.CA}, "cert.pemx: no such file"},
		"a directory":    {identity.Files{Cert: good.Cert, Key: filepath.Dir(good.Key), CA: good.CA}, "is a directory"},
		"a FIFO":         {identity.Files{Cert: good.Cert, Key: fifo, CA: good.CA}, fifo},
		"CA missing":     {identity.Files{Cert: good.Cert, Key: good.Key, CA: good.CA + "x"}, "ca.pemx: no such file"},
		"another's key":  {identity.Files{Cert: good.Cert, Key: other.Key, CA: good.CA}, "does not match"},
		"junk":           {identity.Files{Cert: junk, Key: good.Key, CA: good.CA}, "junk"},
		"CA is junk":     {identity.Files{Cert: good.Cert, Key: good.Key, CA: junk}, "no CA certificate can be read from " + junk},
		"CA is a key":    {identity.Files{Cert: good.Cert, Key: good.Key, CA: good.Key}, "no CA certificate"},
		"no identity":    {ca.Issue(sw("torA"), anonymous), "names no mcrdma identity"},
		"two identities": {ca.Issue(sw("torA"), uris("mcrdma:switch:torA", "mcrdma:switch:torB")), "names two identities"},
	} {
		t.Run(name, func(t *testing.T) {
			_, server := c.files.Server()
			_, client := c.files.Client(identity.Identity{})
			_, _, read := c.files.Read()
			for _, err := range []error{server, client, read} {
				if !errors.Is(err, identity.ErrFiles) || !strings.Contains(err.Error(), c.words) {
					t.Errorf("no word of %q: %v", c.words, err)
				}
			}
		})
	}
	id, until, err := good.Read()
	if left := time.Until(until); err != nil || id.String() != "switch:torA" || left < identitytest.Lifetime-time.Minute || left > identitytest.Lifetime {
		t.Errorf("%v, %v, %v", id, until, err)
	}
	if id, _, err := (identity.Files{}).Read(); err != nil || id.Role != 0 {
		t.Errorf("no files: %v, %v", id, err)
	}
}

// TestAccepted: a certificate that others do not accept, or soon will not, is reported with its end.
func TestAccepted(t *testing.T) {
	ca, other := identitytest.New(t), identitytest.New(t)
	h1 := identity.Identity{Role: identity.Host, Name: "h1", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.11")}}
	ends := time.Now().Add(time.Hour)
	foreign := ca.Issue(h1)
	foreign.CA = other.Issue(h1).CA
	for name, c := range map[string]struct {
		files identity.Files
		words string
	}{
		"good":           {ca.Issue(h1), ""},
		"plain":          {identity.Files{}, ""},
		"ended":          {ca.Issue(h1, expired), "has ended, on "},
		"early":          {ca.Issue(h1, early), "is valid only from "},
		"for an hour":    {ca.Issue(h1, func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Now(), ends }), ""},
		"soon":           {ca.Issue(h1, func(c *x509.Certificate) { c.NotBefore, c.NotAfter = ends.Add(-24*time.Hour), ends }), "ends soon, on " + ends.UTC().Format(time.DateTime)},
		"another's":      {ca.Host("h2", h1.Addrs...), "should be for host:h1"},
		"no address":     {ca.Host("h1"), "should be for host:h1 10.1.0.11"},
		"of another CA":  {foreign, "does not vouch"},
		"cannot be read": {identity.Files{Cert: foreign.Cert, Key: foreign.Key, CA: foreign.CA + "x"}, "no such file"},
		"another's key":  {identity.Files{Cert: foreign.Cert, Key: ca.Issue(h1).Key, CA: foreign.CA}, "does not match"},
	} {
		err := c.files.Accepted(h1)
		if (err == nil) != (c.words == "") || errors.Is(err, identity.ErrSoon) != (name == "soon") || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := (identity.Files{}).Expiry(); got != 0 {
		t.Errorf("plain: until %v", got)
	}
	if f := ca.Issue(h1, func(c *x509.Certificate) { c.NotAfter = ends }); f.Expiry() != float64(ends.Unix()) {
		t.Errorf("until %v, not %v", f.Expiry(), ends.Unix())
	}
}

func TestReplacedFilesCountForNewConnections(t *testing.T) {
	ca, next := identitytest.New(t), identitytest.New(t)
	server, client := ca.Switch("torA"), ca.Host("h1")
	s := serveFiles(t, server)
	creds, err := client.Client(identity.Identity{Role: identity.Switch})
	if err != nil {
		t.Fatal(err)
	}
	old := dial(t, s, creds)
	is := func(conn *grpc.ClientConn, want string) {
		t.Helper()
		if got, err := who(t, s, conn); err != nil || got != want {
			t.Fatalf("%q, %v; want %s", got, err, want)
		}
	}
	is(old, "host:h1")
	ca.Reissue(client, host("h2"))
	is(dial(t, s, creds), "host:h2")
	is(old, "host:h1")

	// Half of the new files: what was good goes on.
	good, err := os.ReadFile(client.Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(client.Key, good[:20], 0o600); err != nil {
		t.Fatal(err)
	}
	is(dial(t, s, creds), "host:h2")
	if err := os.Remove(client.Cert); err != nil {
		t.Fatal(err)
	}
	is(dial(t, s, creds), "host:h2")
	ca.Reissue(client, host("h3"))
	is(dial(t, s, creds), "host:h3")

	// Another CA, the server's side first.
	next.Reissue(server, sw("torA"))
	_, err = who(t, s, dial(t, s, creds))
	says(t, err, "Unavailable", "signed by unknown authority")
	next.Reissue(client, host("h4"))
	is(dial(t, s, creds), "host:h4")
	is(old, "host:h1")
}

func TestFilesAreReadAtMostOnceASecond(t *testing.T) {
	defer identity.SetRecheck(time.Hour)()
	ca := identitytest.New(t)
	f := ca.Host("h1")
	own, due, err := identity.Follow(f)
	if err != nil {
		t.Fatal(err)
	}
	ca.Reissue(f, host("h2"))
	if got := own(); got.Name != "h1" {
		t.Errorf("read again at once: %v", got)
	}
	*due = time.Now()
	if got := own(); got.Name != "h2" {
		t.Errorf("not read again: %v", got)
	}
	if left := time.Until(*due); left < 59*time.Minute {
		t.Errorf("due again in %v", left)
	}
}

// TestHandshakeErrors: what gRPC makes text of is one of the package's errors, and
// says what is known on this side.
func TestHandshakeErrors(t *testing.T) {
	ca, other := identitytest.New(t), identitytest.New(t)
	handshake := func(s *server, f identity.Files, broken bool) error {
		c, err := f.Client(sw("torB"))
		if err != nil {
			t.Fatal(err)
		}
		if c = c.Clone(); broken {
			if err := os.WriteFile(f.CA, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, _, err = c.ClientHandshake(ctx, "x", conn)
		return err
	}
	s := serveFiles(t, ca.Switch("torA"))
	if err := handshake(s, ca.Admin("ops"), false); !errors.Is(err, identity.ErrMismatch) {
		t.Errorf("%v", err)
	}
	if err := handshake(s, other.Admin("ops"), false); !errors.Is(err, identity.ErrUntrusted) {
		t.Errorf("%v", err)
	}
	if err := handshake(s, other.Admin("ops"), true); !errors.Is(err, identity.ErrUntrusted) || !errors.Is(err, identity.ErrFiles) {
		t.Errorf("%v", err)
	}
	err := handshake(s, other.Issue(host("h1"), expired), false)
	if err == nil || !strings.Contains(err.Error(), "this side's own certificate") {
		t.Errorf("%v", err)
	}
	c, err := ca.Admin("ops").Client(sw("torA"))
	if err != nil || c.OverrideServerName("torB") == nil { //nolint:staticcheck // part of the interface
		t.Errorf("a host name was taken, or %v", err)
	}
}

func TestOtherCredentialsGiveNoIdentity(t *testing.T) {
	ca := identitytest.New(t)
	s := serve(t, grpc.Creds(raw(t, ca.Switch("torA"))))
	_, err := call(t, s, ca.Host("h1"), sw("torA"), identity.Claim(host("h1")))
	says(t, err, "Unauthenticated", "other credentials")
	s = serve(t, grpc.Creds(insecure.NewCredentials()))
	_, err = call(t, s, identity.Files{}, sw("torA"), identity.Claim(host("h1")))
	says(t, err, "Unauthenticated", "other credentials")
	s = serve(t)
	_, err = call(t, s, identity.Files{}, sw("torA"), identity.Claim(host("h1")))
	says(t, err, "Unauthenticated", "other credentials")
	if got := s.certified.Load(); got != ", "+identity.ErrNoIdentity.Error() {
		t.Errorf("without TLS it proves %q", got)
	}
	if _, err := identity.FromContext(t.Context()); !errors.Is(err, identity.ErrNoIdentity) {
		t.Errorf("outside of a call: %v", err)
	}
}

// TestWatched: a server reports those whom it did not let in, and not those who went
// away by themselves.
func TestWatched(t *testing.T) {
	ca := identitytest.New(t)
	creds, err := ca.Switch("torA").Server()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tt := range []struct {
		name string
		come func(*net.TCPConn)
		told bool
	}{
		{"goes", func(*net.TCPConn) {}, false},
		{"is reset", func(c *net.TCPConn) { _ = c.SetLinger(0) }, false},
		{"is no client", func(c *net.TCPConn) { _, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n")) }, true},
		{"goes amid its hello", func(c *net.TCPConn) { _, _ = c.Write([]byte{22, 3, 1}) }, true},
		{"is a stranger", func(c *net.TCPConn) {
			_ = tls.Client(c, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(t.Context())
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var told atomic.Bool
			done := make(chan error)
			go func() {
				c, err := l.Accept()
				if err == nil {
					_, _, err = identity.Watched(creds, func(error) { told.Store(true) }).ServerHandshake(c)
					c.Close()
				}
				done <- err
			}()
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			tt.come(c.(*net.TCPConn))
			c.Close()
			if err := <-done; err == nil || told.Load() != tt.told {
				t.Errorf("told: %v; %v", told.Load(), err)
			}
		})
	}
}

// TestExposed: a key that all users can read is told, one of a group's is not.
func TestExposed(t *testing.T) {
	f := identitytest.New(t).Host("h1")
	for mode, bad := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true, 0o602: true} {
		if err := os.Chmod(f.Key, mode); err != nil {
			t.Fatal(err)
		}
		if err := f.Exposed(); (err != nil) != bad {
			t.Errorf("%#o: %v", mode, err)
		}
	}
	if err := (identity.Files{}).Exposed(); err != nil {
		t.Error(err)
	}
}
