package connmgr

import (
	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// TestUntrustedAfterLoss: a request goes into a connection whose other end has gone, and
// the process there now has no good certificate. The caller learns that, and the first
// request may have arrived all the same.
func TestUntrustedAfterLoss(t *testing.T) {
	r := newRig(t, 2, withTLS)
	to := r.host(2)
	// A connection of the test's own, so that the daemon does not connect while no host is
	// there.
	p, err := r.host(1).m.newPeer(config.Host{Name: to.name, Address: to.addr, Daemon: to.listen}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.conn.Close()
	calls := 0
	err = p.call(t.Context(), func(context.Context) error {
		calls++
		r.host(2).kill()
		r.ca.Reissue(r.host(2).files, identity.Identity{Role: identity.Host, Name: "h2", Addrs: []netip.Addr{hostAddr(2)}}, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
		})
		r.restart(2)
		r.until("the loss is noticed", func() bool { return p.conn.GetState() != connectivity.Ready })
		return status.Error(codes.Unavailable, "error reading from server: EOF")
	})
	var f *fault
	if !errors.As(err, &f) || f.reason != Untrusted || !strings.Contains(f.Error(), "expired") || f.unsent {
		t.Errorf("%v (%+v)", err, f)
	}
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
}
