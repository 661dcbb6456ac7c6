package identity

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// Files are the paths of PEM files: a certificate (followed by intermediate ones,
// if there are any), its private key, and the CA certificates that others' are
// checked with. The zero Files mean plain text.
type Files struct{ Cert, Key, CA string }

// Plain reports whether there are no files, and so no TLS.
func (f Files) Plain() bool { return f == Files{} }

// Read reads the files, and returns the certificate's identity and expiry. For the zero Files the
// identity is zero. Errors wrap ErrFiles; an expired certificate is no error here.
func (f Files) Read() (own Identity, until time.Time, err error) {
	if f.Plain() {
		return Identity{}, time.Time{}, nil
	}
	m, err := f.load()
	if err != nil {
		return Identity{}, time.Time{}, err
	}
	return m.own, m.cert.Leaf.NotAfter, nil
}

// Exposed returns an error if all users of this host can read the key, and so can act as its owner;
// nil: they cannot, or there is no key.
func (f Files) Exposed() error {
	if i, err := os.Stat(f.Key); err == nil && i.Mode().Perm()&0o007 != 0 {
		return fmt.Errorf("all users of this host can read the key %s (mode %#o), and act as its owner: chmod o= %[1]s", f.Key, i.Mode().Perm())
	}
	return nil
}

type contents struct{ cert, key, ca []byte }

func (c contents) equal(o contents) bool {
	return bytes.Equal(c.cert, o.cert) && bytes.Equal(c.key, o.key) && bytes.Equal(c.ca, o.ca)
}

func (f Files) read() (c contents, err error) {
	if f.Cert == "" || f.Key == "" || f.CA == "" {
		return c, fmt.Errorf("identity: %w: certificate %q, key %q and CA %q must all be given, or none for plain text", ErrFiles, f.Cert, f.Key, f.CA)
	}
	for _, x := range []struct {
		path string
		to   *[]byte
	}{{f.Cert, &c.cert}, {f.Key, &c.key}, {f.CA, &c.ca}} {
		if *x.to, err = readFile(x.path); err != nil {
			return c, fmt.Errorf("identity: %w: %w", ErrFiles, err)
		}
	}
	return c, nil
}

// maxFile is more than any of the files has.
const maxFile = 1 << 20

// readFile does not block: a FIFO that no process writes to reads as empty. All handshakes wait for it.
func readFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// A material is what the files hold.
type material struct {
	raw  contents
	cert tls.Certificate // with Leaf
	cas  *x509.CertPool
	own  Identity
}

func (f Files) load() (*material, error) {
	raw, err := f.read()
	if err != nil {
		return nil, err
	}
	return f.parse(raw)
}

func (f Files) parse(raw contents) (*material, error) {
	m := &material{raw: raw, cas: x509.NewCertPool()}
	var err error
	if m.cert, err = tls.X509KeyPair(raw.cert, raw.key); err != nil {
		return nil, fmt.Errorf("identity: %w: certificate %s and key %s: %w", ErrFiles, f.Cert, f.Key, err)
	}
	if m.own, err = FromCert(m.cert.Leaf); err != nil {
		return nil, fmt.Errorf("identity: %w: %s: %w", ErrFiles, f.Cert, err)
	}
	if !m.cas.AppendCertsFromPEM(raw.ca) {
		return nil, fmt.Errorf("identity: %w: no CA certificate can be read from %s, which must be PEM", ErrFiles, f.CA)
	}
	return m, nil
}

// recheck is how long files are taken as they were.
var recheck = time.Second

// A source follows the files. Contents are compared, and not times: three small
// files at most once a second cost nothing, and nothing is missed.
type source struct {
	files Files

	mu     sync.Mutex
	have   *material
	due    time.Time
	failed error // why have is not what the files hold
}

func newSource(f Files) (*source, error) {
	s := &source{files: f}
	s.refresh()
	s.due = time.Now().Add(recheck)
	return s, s.failed
}

func (s *source) refresh() {
	raw, err := s.files.read()
	if err == nil && s.have != nil && s.have.raw.equal(raw) {
		s.failed = nil
		return
	}
	var m *material
	if err == nil {
		m, err = s.files.parse(raw)
	}
	if s.failed = err; err == nil {
		s.have = m
	}
}

// get returns what the files held when they last made sense. They need not while
// they are being replaced, one after another.
func (s *source) get() *material {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); !now.Before(s.due) {
		s.refresh()
		s.due = now.Add(recheck)
	}
	return s.have
}

// A plainPeerError is what TLS says of a peer that answers in plain text, in other words.
type plainPeerError struct{ err tls.RecordHeaderError }

func (plainPeerError) Error() string {
	return "the other side does not speak TLS: give it certificate files, or none to this side"
}

func (e plainPeerError) Unwrap() error { return e.err }

// explain adds to the error of a handshake what is known on this side.
func (s *source) explain(err error, m *material) error {
	s.mu.Lock()
	failed := s.failed
	s.mu.Unlock()
	if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok && plain.Conn != nil {
		err = plainPeerError{plain}
	}
	if now := time.Now(); now.After(m.cert.Leaf.NotAfter) || now.Before(m.cert.Leaf.NotBefore) {
		err = fmt.Errorf("%w; this side's own certificate %s is valid from %v to %v: renew it", err, s.files.Cert, m.cert.Leaf.NotBefore, m.cert.Leaf.NotAfter)
	}
	if failed != nil {
		err = fmt.Errorf("%w; this side's files have changed and cannot be used: %w", err, failed)
	}
	return err
}
