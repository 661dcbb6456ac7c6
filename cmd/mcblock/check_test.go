package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestCheck: serve --check reports what would prevent serving, and warns of an etcd that is no
// safer than with fewer members.
func TestCheck(t *testing.T) {
	ca, other, at := identitytest.New(t), identitytest.New(t), testenv.Loopback()
	h1 := identity.Identity{Role: identity.Host, Name: "h1", Addrs: []netip.Addr{at}}
	right, foreign, elsewhere := ca.Host("h1", at), ca.Host("h1", at), ca.Host("h1", netip.MustParseAddr("127.0.0.9"))
	foreign.CA = other.Host("h1").CA
	expired := ca.Issue(h1, func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	})
	absent := identity.Files{Cert: "none.crt", Key: right.Key, CA: right.CA}
	exposed := ca.Host("h1", at)
	if err := os.Chmod(exposed.Key, 0o644); err != nil { //nolint:gosec // must be refused
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := ports(t, 4)
	three := fmt.Sprintf(`{name: h1, address: %v, peer: "%[1]v:%[2]d", client: "%[1]v:%[3]d"}`, at, p[0], p[1]) + ", {name: h2, address: 127.0.0.2}, {name: h3, address: 127.0.0.3}"
	for _, c := range []struct {
		name, data, members string
		files               identity.Files
		clients, want       string
		code                int
		more                string
	}{
		{name: "all is well", files: right, want: "the configuration of h1 is right"},
		{name: "no certificate", files: absent, code: cli.ExitFailure, want: configuration + ": tls: identity: bad certificate files: open "},
		{name: "foreign CA", files: foreign, code: cli.ExitFailure, want: "the CA in " + foreign.CA + " does not vouch for " + foreign.Cert},
		{name: "expired", files: expired, code: cli.ExitFailure, want: "has ended, on "},
		{name: "another's", files: ca.Host("h2", at), code: cli.ExitFailure, want: "is for host:h2 " + at.String() + ", and should be for host:h1"},
		{name: "no address", files: elsewhere, code: cli.ExitFailure, want: "is for host:h1 127.0.0.9, and should be for host:h1 " + at.String()},
		{name: "a key that all can read", files: exposed, code: cli.ExitFailure, want: "all users of this host can read the key " + exposed.Key},
		{name: "no CA of clients", files: right, clients: "none.pem", code: cli.ExitFailure, want: configuration + ": tls.clients: "},
		{name: "a file", files: right, data: file, code: cli.ExitFailure, want: "data directory " + file + " cannot be written"},
		{name: "below a file", files: right, data: file + "/data", code: cli.ExitFailure, want: "not a directory"},
		{name: "no files can be made", files: right, data: "/proc/data", code: cli.ExitFailure, want: "data directory /proc/data cannot be written"},
		{name: "two members", files: right, members: three[:strings.LastIndex(three, ", {")], want: "two members of etcd: if one of them is lost there is no majority"},
		{name: "four members", files: right, members: three + ", {name: h4, address: 127.0.0.4}", want: "no more of them may be lost than of 3"},
		{name: "renamed", files: right, members: strings.ReplaceAll(three, "h1", "host1"), code: cli.ExitFailure, want: "a member has the name of its host"},
		{name: "twice", files: right, members: strings.ReplaceAll(three, "0.0.3", "0.0.2"), code: cli.ExitFailure, want: `127.0.0.2:2380 is there already, of member "h2"`},
		{name: "NBD where metrics are", files: right, more: fmt.Sprintf("metrics: %v:%d", at, p[2]), code: cli.ExitFailure, want: fmt.Sprintf("nbd and metrics are both %v:%d", at, p[2])},
		{name: "metrics where etcd is, at all addresses", files: right, more: fmt.Sprint("metrics: 0.0.0.0:", p[1]), code: cli.ExitFailure, want: fmt.Sprintf("client of etcd's member %v:%d: another", at, p[1]) + " program listens there"},
		{name: "another host's", files: right, more: "metrics: 192.0.2.1:9572", code: cli.ExitFailure, want: "metrics 192.0.2.1:9572: it is not an address of this host"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, configuration)
		text := fmt.Sprintf("name: h1\nid: 1\naddress: %[1]v\nlisten: %[1]v:%[2]d\nnbd: %[1]v:%[3]d\ntls: {cert: %[4]s, key: %[5]s, ca: %[6]s}\n%[7]s\n", at, p[3], p[2], c.files.Cert, c.files.Key, c.files.CA, c.more)
		if c.clients != "" {
			text = strings.Replace(text, "}", ", clients: "+c.clients+"}", 1)
		}
		if c.data == "" {
			c.data = "new/data"
		}
		if c.members == "" {
			c.members = three
		}
		text += fmt.Sprintf("data: %s\netcd: {members: [%s]}\n", c.data, c.members)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, stdout, stderr := call(t, "serve", "--check", "--config", path)
		if warns := strings.Contains(stderr, "level=WARN"); code != c.code || !strings.Contains(stdout+stderr, c.want) || warns != (code == 0 && strings.HasSuffix(c.name, "members")) {
			t.Errorf("%s: %d, %s%s; want %d, %s", c.name, code, stdout, stderr, c.code, c.want)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%s: left %v, %v", c.name, left, err)
		}
	}
}

// TestCheckUnique: serve --check asks etcd, if that answers, for another host of the name or the number.
func TestCheckUnique(t *testing.T) {
	r := newRig(t, 2)
	path := filepath.Join(r.hosts[1].cfg.Data, configuration)
	text, err := os.ReadFile(path) //nolint:gosec // the rig's
	if err != nil {
		t.Fatal(err)
	}
	if out := r.must("serve --check --config " + path); out != "the configuration of h2 is right\n" {
		t.Error(out)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "id: 2", "id: 1", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := call(t, "serve", "--check", "--config", path); code != cli.ExitFailure || !strings.Contains(errs, "host h2 with the number 1: ") {
		t.Errorf("%d, %s%s", code, out, errs)
	}
}

// TestTwice: the error of a second process on a data directory names the directory, and the process
// that has it.
func TestTwice(t *testing.T) {
	r := newRig(t, 1)
	again := *r.hosts[0].cfg
	s := &server{cfg: &again}
	err := s.run(context.Background(), new(strings.Builder))
	if want := fmt.Sprintf("data directory %s: in use by another process (process %d, mcblock.test", again.Data, os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %s", err, want)
	}
}
