package labca

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/internal/identity"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func leaf(t testing.TB, p Pair) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode(p.Cert)
	if block == nil || len(rest) > 0 {
		t.Fatal("not one PEM block")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	must(t, err)
	return c
}

// TestIssue: certificates are valid by the CA, both ways, and package identity reads
// them as what they were issued for.
func TestIssue(t *testing.T) {
	ca, err := New("lab", time.Hour)
	must(t, err)
	again, err := Load(ca.Pair())
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Pair().Cert)
	host := identity.Identity{Role: identity.Host, Name: "h1", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::1")}}
	serials := map[string]bool{}
	for _, by := range []*CA{ca, again} {
		for _, id := range []identity.Identity{host, {Role: identity.Switch, Name: "torA"}, {Role: identity.Admin, Name: "me"}} {
			p, err := by.Issue(id, 24*time.Hour)
			must(t, err)
			c := leaf(t, p)
			for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
				_, err = c.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{use}})
				must(t, err)
			}
			if c.NotAfter.After(ca.cert.NotAfter) || c.IsCA {
				t.Errorf("until %v, CA %v", c.NotAfter, c.IsCA)
			}
			serials[c.SerialNumber.String()] = true
			dir := t.TempDir()
			f := identity.Files{Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k"), CA: filepath.Join(dir, "ca")}
			must(t, os.WriteFile(f.Cert, p.Cert, 0o600))
			must(t, os.WriteFile(f.Key, p.Key, 0o600))
			must(t, os.WriteFile(f.CA, ca.Pair().Cert, 0o600))
			own, until, err := f.Read()
			must(t, err)
			if d := cmp.Diff(id.String(), own.String()); d != "" || !until.Equal(c.NotAfter) {
				t.Errorf("%s %v", d, until)
			}
		}
	}
	if len(serials) != 6 {
		t.Errorf("%d serial numbers of 6 certificates", len(serials))
	}
}

func TestBad(t *testing.T) {
	ca, err := New("lab", time.Hour)
	must(t, err)
	for _, id := range []identity.Identity{{}, {Role: identity.Host}, {Role: identity.Host, Name: "a b"}} {
		if _, err := ca.Issue(id, time.Hour); !errors.Is(err, ErrIdentity) {
			t.Errorf("%v: %v", id, err)
		}
	}
	p, err := ca.Issue(identity.Identity{Role: identity.Host, Name: "h"}, time.Hour)
	must(t, err)
	for name, bad := range map[string]Pair{"nothing": {}, "no CA": p, "another's key": {ca.Pair().Cert, p.Key}} {
		if _, err := Load(bad); !errors.Is(err, ErrCA) {
			t.Errorf("%s: %v", name, err)
		}
	}
	old, err := New("old", -time.Minute)
	must(t, err)
	if _, err := old.Issue(identity.Identity{Role: identity.Host, Name: "h"}, time.Hour); !errors.Is(err, ErrCA) {
		t.Errorf("an old CA: %v", err)
	}
}
