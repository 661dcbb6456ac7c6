package lab

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"time"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/labca"
)

// A CA signs the certificates of a lab, and keeps them in a directory.
type CA struct {
	dir string
	ca  *labca.CA
}

// valid is long enough for labs with hosts' clocks that are wrong by days.
const valid = 1000 * 24 * time.Hour

// NewCA makes a CA with files in dir.
func NewCA(dir string) (*CA, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	ca, err := labca.New("lab CA", valid)
	if err != nil {
		return nil, err
	}
	c := &CA{dir, ca}
	return c, os.WriteFile(c.file("ca.crt"), ca.Pair().Cert, 0o600)
}

func (c *CA) file(name string) string { return filepath.Join(c.dir, name) }

// Issue writes files for the identity id, replacing those of the same name. edit may change the
// certificate before it is signed.
func (c *CA) Issue(id identity.Identity, edit ...func(*x509.Certificate)) (identity.Files, error) {
	f := identity.Files{Cert: c.file(id.Name + ".crt"), Key: c.file(id.Name + ".key"), CA: c.file("ca.crt")}
	p, err := c.ca.Issue(id, valid, edit...)
	if err != nil {
		return f, err
	}
	if err := os.WriteFile(f.Key, p.Key, 0o600); err != nil {
		return f, err
	}
	return f, os.WriteFile(f.Cert, p.Cert, 0o600)
}
