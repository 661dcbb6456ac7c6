package connmgr

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
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
	"github.com/mcrdma/mcrdma/internal/testenv"
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

// TestDistrusted: a receiver whose connection is lost after its certificate has ended has as much
// time as one whose daemon does not run, and the reason of its removal says why.
func TestDistrusted(t *testing.T) {
	for _, renewed := range []bool{true, false} {
		testenv.Bubble(t, fmt.Sprintf("renewed %v", renewed), func(t *testing.T) {
			r := newRig(t, 3, withTLS, withSwitch)
			r.receivers()
			a := r.host(1).app("")
			a.create(a.request())
			own := identity.Identity{Role: identity.Host, Name: "h2", Addrs: []netip.Addr{hostAddr(2)}}
			r.ca.Reissue(r.host(2).files, own, func(c *x509.Certificate) {
				c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Second)
			})
			r.pass(3 * time.Second)
			r.net.Break(r.host(1).process(), r.host(2).process())
			r.pass(6 * time.Second)
			d, err := a.rpc.GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{})
			if p := d.GetPeers()[0]; err != nil || p.GetState() != "untrusted" || !strings.Contains(p.GetError(), "expired") {
				t.Errorf("%v, %v", p, err)
			}
			if a.countChanges(mcrdmav1.GroupChanged_TYPE_REMOVED) > 0 {
				t.Error("it is removed at once")
			}
			if renewed {
				r.ca.Reissue(r.host(2).files, own)
				r.pass(20 * time.Second)
				if a.countChanges(mcrdmav1.GroupChanged_TYPE_REMOVED) > 0 {
					t.Error("it is removed, and its certificate was renewed")
				}
				return
			}
			if e := a.await(mcrdmav1.GroupChanged_TYPE_REMOVED); !strings.Contains(e.GetText(), "expired") {
				t.Errorf("%v", e)
			}
		})
	}
}
