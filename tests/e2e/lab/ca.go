package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/internal/identity"
)

// A CA signs the certificates of a lab.
type CA struct {
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	last atomic.Int64
}

// NewCA makes a CA whose files go to dir.
func NewCA(dir string) (*CA, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	c := &CA{dir: dir, key: key}
	c.last.Store(1)
	now := time.Now()
	c.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lab CA"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c.cert, c.cert, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if c.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return c, writePEM(c.ca(), "CERTIFICATE", der)
}

func (c *CA) ca() string { return filepath.Join(c.dir, "ca.crt") }

// Issue writes files for who id is, under that name; files of that name are
// replaced. edit alters the certificate before it is signed.
func (c *CA) Issue(id identity.Identity, edit ...func(*x509.Certificate)) (identity.Files, error) {
	f := identity.Files{Cert: filepath.Join(c.dir, id.Name+".crt"), Key: filepath.Join(c.dir, id.Name+".key"), CA: c.ca()}
	now := time.Now()
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(c.last.Add(1)), Subject: pkix.Name{CommonName: id.Name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{{Scheme: "mcrdma", Opaque: id.Role.String() + ":" + id.Name}},
	}
	for _, a := range id.Addrs {
		cert.IPAddresses = append(cert.IPAddresses, a.AsSlice())
	}
	for _, e := range edit {
		e(cert)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return f, err
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, c.cert, key.Public(), c.key)
	if err != nil {
		return f, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return f, err
	}
	if err := writePEM(f.Key, "PRIVATE KEY", keyDER); err != nil {
		return f, err
	}
	return f, writePEM(f.Cert, "CERTIFICATE", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
