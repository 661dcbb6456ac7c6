// Package identitytest issues certificates for tests, from a CA in memory. Only
// tests may import it.
package identitytest

import (
	"crypto/x509"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/labca"
)

// Lifetime is how long the certificates are valid.
const Lifetime = 720 * time.Hour

// A CA issues certificates that are valid for Lifetime. Its methods fail the test if
// they cannot do what they should, and may be called concurrently.
type CA struct {
	t  testing.TB
	ca *labca.CA
}

// New makes a CA.
func New(t testing.TB) *CA {
	t.Helper()
	ca, err := labca.New("CA of "+t.Name(), Lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return &CA{t: t, ca: ca}
}

// Host returns files of a host with these addresses.
func (c *CA) Host(name string, addrs ...netip.Addr) identity.Files {
	c.t.Helper()
	return c.Issue(identity.Identity{Role: identity.Host, Name: name, Addrs: addrs})
}

// Switch returns files of a switch.
func (c *CA) Switch(name string) identity.Files {
	c.t.Helper()
	return c.Issue(identity.Identity{Role: identity.Switch, Name: name})
}

// Admin returns files of an administrator.
func (c *CA) Admin(name string) identity.Files {
	c.t.Helper()
	return c.Issue(identity.Identity{Role: identity.Admin, Name: name})
}

// Issue returns files in a directory of the test, with a certificate for id that
// was edited before it was signed.
func (c *CA) Issue(id identity.Identity, edit ...func(*x509.Certificate)) identity.Files {
	c.t.Helper()
	dir := c.t.TempDir()
	f := identity.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem")}
	c.Reissue(f, id, edit...)
	return f
}

// Reissue replaces files by those of a new certificate, each at once.
func (c *CA) Reissue(f identity.Files, id identity.Identity, edit ...func(*x509.Certificate)) {
	c.t.Helper()
	p, err := c.ca.Issue(id, Lifetime, edit...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(f.Cert, p.Cert)
	c.write(f.Key, p.Key)
	c.write(f.CA, c.ca.Pair().Cert)
}

func (c *CA) write(path string, pem []byte) {
	c.t.Helper()
	err := os.WriteFile(path+".new", pem, 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}
