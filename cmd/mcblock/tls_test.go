package main

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// pki is a directory of certificates in the layout that clients with GnuTLS expect.
func pki(t *testing.T, ca string, f identity.Files) string {
	t.Helper()
	dir := t.TempDir()
	for name, from := range map[string]string{"ca-cert.pem": ca, "client-cert.pem": f.Cert, "client-key.pem": f.Key} {
		if from == "" {
			continue
		}
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestClientsTLS: other projects' NBD clients open a volume with a certificate of the CA, and are
// refused with none, with another CA's, with an expired one, and if they do not know the server's
// CA.
func TestClientsTLS(t *testing.T) {
	for _, tool := range []string{"nbdinfo", "nbdcopy", "qemu-img"} {
		if _, err := exec.LookPath(tool); err != nil {
			testenv.Skip(t, "no %s (Debian: libnbd-bin, qemu-utils)", tool)
		}
	}
	r := newRig(t, 1)
	h := r.hosts[0]
	r.must("volume create vol --size 16M")
	r.until("it is served", func() error {
		_, err := r.open(h, "vol", identity.Files{})
		return err
	})
	ca, other := h.cfg.TLS.CA, identitytest.New(t)
	vm1 := r.client("vm1")
	expired := r.ca.Issue(identity.Identity{Role: identity.Host, Name: "vm1"}, func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	})
	file := filepath.Join(t.TempDir(), "data")
	host, port, err := net.SplitHostPort(h.cfg.NBD)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, dir, libnbd, qemu string // their error messages; "": it works
	}{
		{"right", pki(t, ca, vm1), "", ""},
		{"none", pki(t, ca, identity.Files{}), "A TLS fatal alert has been received", "Input/output error"},
		{"foreign", pki(t, ca, other.Host("vm1")), "A TLS fatal alert has been received", "known issuer"},
		{"expired", pki(t, ca, expired), "A TLS fatal alert has been received", "has expired"},
		{"another CA", pki(t, other.Host("x").CA, vm1), "certificate verification", "known issuer"},
	} {
		uri := "nbds://" + h.cfg.NBD + "/vol?tls-certificates=" + c.dir
		for args, want := range map[string]string{
			"nbdinfo --size " + uri:            c.libnbd,
			"nbdcopy " + uri + " " + file:      c.libnbd,
			"nbdcopy --flush /dev/null " + uri: c.libnbd,
			"qemu-img info --object tls-creds-x509,id=t,dir=" + c.dir + ",endpoint=client --image-opts driver=nbd,host=" + host + ",port=" + port + ",export=vol,tls-creds=t": c.qemu,
		} {
			words := strings.Fields(args)
			out, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput() //nolint:gosec // the test's own
			if (err == nil) != (want == "") || !strings.Contains(string(out), want) {
				t.Errorf("%s: %s: %v, %s; want %q", c.name, args, err, out, want)
			}
		}
	}
}

// TestClientsCA: who has the CA of NBD clients replaced need not start mcblock again, above all not to keep clients out.
func TestClientsCA(t *testing.T) {
	r := newRig(t, 1)
	h, other := r.hosts[0], identitytest.New(t)
	r.must("volume create vol --size 16M")
	host, admitted := r.client("vm1"), other.Host("vm2")
	admitted.CA = host.CA // by which it knows the server
	until := func(what string, f identity.Files, opens bool) {
		r.until(what, func() error {
			if _, err := r.open(h, "vol", f); (err == nil) != opens {
				return fmt.Errorf("opens, unless it says why not: %w", err)
			}
			return nil
		})
	}
	until("a client of the CA", host, true)
	until("a client of another CA", admitted, false)
	for _, from := range []string{other.Host("h1").CA, host.CA} {
		b, err := os.ReadFile(from) //nolint:gosec // a test's
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(h.cfg.TLS.Clients, b, 0o600); err != nil {
			t.Fatal(err)
		}
		until("a client of the other CA", admitted, from != host.CA)
		until("a client of the first CA", host, from == host.CA)
	}
}

// TestChangedCA: doctor says that mcblock has to be restarted after its CA was changed.
func TestChangedCA(t *testing.T) {
	r := newRig(t, 1)
	const want = "its file of the CA was changed after its mcblock began"
	if _, out, _ := call(t, "doctor"); strings.Contains(out, want) {
		t.Error(out)
	}
	at := r.hosts[0].cfg.TLS.CA
	now, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	another, err := os.ReadFile(identitytest.New(t).Host("h1").CA)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, append(now, another...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, out, _ := call(t, "doctor"); !strings.Contains(out, want) {
		t.Error(out)
	}
}
