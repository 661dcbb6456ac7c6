package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/mcrdmatest"
)

// A rig is hosts that serve, with TLS. Etcd runs on the first.
type rig struct {
	t     *testing.T
	ca    *identitytest.CA
	hosts []*served // h1, h2, and so on
}

// served is a host that serves.
type served struct {
	cfg  *config.Config
	stop func()
}

func newRig(t *testing.T, hosts int) *rig {
	t.Helper()
	r := &rig{t: t, ca: identitytest.New(t)}
	rack := mcrdmatest.Start(t, max(hosts, 2))
	var etcd string
	for i := 1; i <= hosts; i++ {
		name, at, dir := fmt.Sprint("h", i), testenv.Loopback(), t.TempDir()
		device := netip.MustParseAddr(fmt.Sprint("10.1.0.", 10+i))
		if i == 1 {
			p := ports(t, 2)
			etcd = fmt.Sprintf(`{name: h1, address: %v, peer: "%[1]v:%[2]d", client: "%[1]v:%[3]d"}`, at, p[0], p[1])
		}
		f := r.ca.Host(name, at, device)
		text := fmt.Sprintf("name: %s\nid: %d\naddress: %v\ndata: %s\nlisten: %v:9570\nnbd: %v:10809\nmetrics: %v:9572\nsocket: none.sock\ntls: {cert: %s, key: %s, ca: %s}\netcd: {members: [%s]}\n",
			name, i, device, dir, at, at, at, f.Cert, f.Key, f.CA, etcd)
		path := filepath.Join(dir, configuration)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			t.Setenv(configEnv, path)
		}
		log := io.Discard
		if testing.Verbose() {
			log = os.Stderr
		}
		s := &server{cfg: cfg, client: rack.Dial(name), log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})).With("host", name)}
		ctx, cancel := context.WithCancel(context.Background())
		out, ended := new(testenv.SyncBuffer), make(chan error, 1)
		go func() { ended <- s.run(ctx, out) }()
		h := &served{cfg: cfg}
		h.stop = func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			ended <- nil // it may be stopped again
		}
		t.Cleanup(h.stop)
		r.hosts = append(r.hosts, h)
		r.until(name+" is ready", func() error {
			select {
			case err := <-ended:
				ended <- nil
				t.Fatal("it has ended: ", err)
			default:
			}
			if !strings.Contains(out.String(), "ready") {
				return fmt.Errorf("%q", out.String())
			}
			return nil
		})
	}
	r.until("etcd knows all hosts", func() error {
		if _, out, _ := call(t, "status"); strings.Count(out, ":10809") != hosts {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	return r
}

// ports returns ports that no program listens at, at any address.
func ports(t *testing.T, n int) (all []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", ":0") //nolint:gosec // nothing is accepted
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		all = append(all, l.Addr().(*net.TCPAddr).Port)
	}
	return all
}

// until waits for the effects of processes and the network.
func (r *rig) until(what string, is func() error) {
	r.t.Helper()
	for late := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := is()
		if err == nil {
			return
		}
		if time.Now().After(late) {
			r.t.Fatalf("%s: %v", what, err)
		}
	}
}

// must calls a command that must succeed.
func (r *rig) must(command string) string {
	r.t.Helper()
	code, out, errs := call(r.t, strings.Fields(command)...)
	if code != 0 {
		r.t.Fatalf("mcblock %s: %d, %s%s", command, code, out, errs)
	}
	return out
}

// client issues a certificate that belongs to no host of the rig.
func (r *rig) client(name string) identity.Files { return r.ca.Host(name) }
