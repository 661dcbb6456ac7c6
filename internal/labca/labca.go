// Package labca is a small certificate authority for labs and tests: it issues the
// certificates that package identity reads. A real fleet needs a better one, with
// its key elsewhere and revocation.
//
// It holds everything in memory and writes no files.
package labca

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"github.com/mcrdma/mcrdma/internal/identity"
)

// Errors that those of this package wrap.
var (
	// ErrCA: certificate or key of the CA cannot be used.
	ErrCA = errors.New("unusable CA")
	// ErrIdentity: no host, switch or administrator can be called that.
	ErrIdentity = errors.New("impossible identity")
)

// A Pair is a certificate with its private key, each in PEM.
type Pair struct{ Cert, Key []byte }

// A CA issues certificates. It may be used by several goroutines.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
	pair Pair
}

// early is how long before now certificates begin to be valid, for clocks that are slow.
const early = time.Hour

// New makes a CA whose own certificate is valid for so long.
func New(name string, valid time.Duration) (*CA, error) {
	cert, err := template(name, valid)
	if err != nil {
		return nil, err
	}
	cert.IsCA, cert.BasicConstraintsValid = true, true
	cert.MaxPathLenZero = true // it issues no further CAs
	cert.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	c := &CA{}
	if c.pair, err = sign(cert, nil); err != nil {
		return nil, err
	}
	return Load(c.pair)
}

// Load takes a CA up that Pair gave out. Errors wrap ErrCA.
func Load(p Pair) (*CA, error) {
	both, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return nil, fmt.Errorf("labca: %w: %w", ErrCA, err)
	}
	key, ok := both.PrivateKey.(crypto.Signer)
	if !both.Leaf.IsCA || !ok {
		return nil, fmt.Errorf("labca: %w: the certificate of %q is no CA's", ErrCA, both.Leaf.Subject.CommonName)
	}
	return &CA{cert: both.Leaf, key: key, pair: Pair{bytes.Clone(p.Cert), bytes.Clone(p.Key)}}, nil
}

// Pair is the CA's own certificate, which every program is to have, and its key, which
// no program but the CA is to have.
func (c *CA) Pair() Pair { return c.pair }

// Issue makes a key and a certificate for id, to be used as a server and as a client.
// It ends after so long, or with the CA's. The certificate may be edited before it is
// signed. Errors wrap ErrIdentity, or tell that the CA has ended (ErrCA).
func (c *CA) Issue(id identity.Identity, valid time.Duration, edit ...func(*x509.Certificate)) (Pair, error) {
	if _, err := identity.Parse(id.String()); err != nil {
		return Pair{}, fmt.Errorf("labca: %w: %w", ErrIdentity, err)
	}
	cert, err := template(id.Name, valid)
	if err != nil {
		return Pair{}, err
	}
	if end := c.cert.NotAfter; cert.NotAfter.After(end) {
		cert.NotAfter = end
	}
	if time.Now().After(c.cert.NotAfter) {
		return Pair{}, fmt.Errorf("labca: %w: its certificate was valid until %v; make another CA", ErrCA, c.cert.NotAfter.Format(time.DateTime))
	}
	cert.KeyUsage = x509.KeyUsageDigitalSignature
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert.URIs = []*url.URL{{Scheme: "mcrdma", Opaque: id.Role.String() + ":" + id.Name}}
	for _, a := range id.Addrs {
		cert.IPAddresses = append(cert.IPAddresses, a.Unmap().AsSlice())
	}
	for _, e := range edit {
		e(cert)
	}
	return sign(cert, c)
}

// template is what all certificates have.
func template(name string, valid time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("labca: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-early), NotAfter: now.Add(valid),
	}, nil
}

// sign makes a key for a certificate, and signs it with the CA's, or its own if there is
// none.
func sign(cert *x509.Certificate, by *CA) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("labca: making a key: %w", err)
	}
	parent, signer := cert, crypto.Signer(key)
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), signer)
	if err != nil {
		return Pair{}, fmt.Errorf("labca: signing: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("labca: %w", err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, nil
}
