// Package identitytest issues certificates for tests, from a CA in memory. Only
// tests may import it; it imports the standard library and package identity.
package identitytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/identity"
)

// A CA issues certificates that are good for an hour. Its methods fail the test if
// they cannot do what they should, and may be called concurrently.
type CA struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	last atomic.Int64 // serial number
}

// New makes a CA.
func New(t testing.TB) *CA {
	t.Helper()
	c := &CA{t: t, key: newKey(t), cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA of " + t.Name()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	c.last.Store(1)
	der, err := x509.CreateCertificate(rand.Reader, c.cert, c.cert, c.key.Public(), c.key)
	if err == nil {
		c.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
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
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(c.last.Add(1)), Subject: pkix.Name{CommonName: id.Name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{{Scheme: "mcrdma", Opaque: id.Role.String() + ":" + id.Name}},
	}
	for _, a := range id.Addrs {
		cert.IPAddresses = append(cert.IPAddresses, a.AsSlice())
	}
	for _, e := range edit {
		e(cert)
	}
	key := newKey(c.t)
	der, err := x509.CreateCertificate(rand.Reader, cert, c.cert, key.Public(), c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(f.Cert, "CERTIFICATE", der)
	c.write(f.Key, "PRIVATE KEY", keyDER)
	c.write(f.CA, "CERTIFICATE", c.cert.Raw)
}

func (c *CA) write(path, kind string, der []byte) {
	c.t.Helper()
	err := os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
