package connmgr

import (
	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// TestUntrustedAfterLoss: a request goes into a connection whose other end has gone, and
// the process there now has no good certificate. The caller learns that, and the first
// request may have arrived all the same.
func TestUntrustedAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, withTLS)
		to := r.host(2)
		// A connection of the test's own, so that the daemon does not connect while no host is
		// there.
		p, err := r.host(1).m.peers.newPeer(config.Host{Name: to.name, Address: to.addr, Daemon: to.listen})
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
		if !failure.Is(err, mcrdmav1.Reason_UNTRUSTED) || !strings.Contains(err.Error(), "expired") || errors.As(err, new(*unsentError)) {
			t.Errorf("%v (%T)", err, err)
		}
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
	})
}
