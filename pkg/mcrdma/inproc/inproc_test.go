package inproc

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func applications(t *testing.T, d *Daemon) mcrdmav1.ApplicationsClient {
	t.Helper()
	c, err := grpc.NewClient("unix:"+d.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return mcrdmav1.NewApplicationsClient(c)
}

// TestStart: it serves, and leaves nothing behind.
func TestStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ca := identitytest.New(t)
	addr := netip.MustParseAddr("127.9.1.1")
	files := ca.Host("a", addr)
	l, err := net.Listen("tcp", "127.9.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d, err := Start(ctx, Options{Name: "a", Address: addr, Listener: l, Cert: files.Cert, Key: files.Key, CA: files.CA, Rack: 3,
		Hosts: []Host{{Name: "b", Address: netip.MustParseAddr("127.9.1.2")}}, Beat: 50 * time.Millisecond, DeadAfter: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	cancel() // it does not end with the context
	if d.Addr().String() != l.Addr().String() {
		t.Errorf("serves at %v", d.Addr())
	}
	res, err := applications(t, d).GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{})
	if err != nil || res.GetHost() != "a" || res.GetDevice() != "softroce:127.9.1.1" || len(res.GetPeers()) != 1 || !strings.HasPrefix(res.GetTls(), "host:a") {
		t.Errorf("%v, %v", res, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(d.Socket())); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// TestDefaults: an address is enough, once.
func TestDefaults(t *testing.T) {
	o := Options{Address: netip.MustParseAddr("127.9.1.9")} // not an address of other tests
	d, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	res, err := applications(t, d).GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{})
	if err != nil || res.GetHost() != "local" || res.GetAddress() != "127.9.1.9" || res.GetListen() != "127.9.1.9:9550" || res.GetTls() != "plain text" {
		t.Errorf("%v, %v", res, err)
	}
	if _, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("%v", err)
	}
}
