package lab

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/labca"
)

// validity is how long certificates are valid: longer than any lab is kept.
const validity = 30 * 24 * time.Hour

func (l *Lab) caFile() string { return filepath.Join(l.o.Dir, "ca.pem") }

// openCA makes the CA, whose key is in memory only.
func (l *Lab) openCA() (err error) {
	if l.ca, err = labca.New("lab", validity); err != nil {
		return err
	}
	return writeFile(l.caFile(), l.ca.Pair().Cert)
}

// files are a subject's files in the lab's directory.
func (l *Lab) files(name string) identity.Files {
	base := filepath.Join(l.o.Dir, name)
	return identity.Files{Cert: base + ".pem", Key: base + ".key", CA: l.caFile()}
}

// issue makes a subject's key and certificate files in the lab's directory.
func (l *Lab) issue(id identity.Identity) (identity.Files, error) {
	f := l.files(id.Name)
	pair, err := l.ca.Issue(id, validity)
	if err != nil {
		return f, err
	}
	return f, errors.Join(writeFile(f.Cert, pair.Cert), writeFile(f.Key, pair.Key))
}

func writeFile(path string, pem []byte) error { return os.WriteFile(path, pem, 0o600) }
