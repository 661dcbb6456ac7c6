package connmgr

import (
	"context"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/internal/connmgr/config"
)

// TestConnectAgain: a caller that waits for a connection learns at once that no daemon is
// there, but not that one try was lost.
func TestConnectAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		to := r.host(2)
		tries := 0
		m := &Manager{cfg: r.host(1).m.cfg, opts: r.host(1).m.opts}
		m.opts.Dial = func(ctx context.Context, target string) (net.Conn, error) {
			if tries++; tries == 1 {
				return nil, os.ErrDeadlineExceeded
			}
			return r.host(1).m.opts.Dial(ctx, target)
		}
		p, err := m.newPeer(config.Host{Name: to.name, Address: to.addr, Daemon: to.listen}, false)
		if err != nil {
			t.Fatal(err)
		}
		defer p.conn.Close()
		if !p.conn.Wait(t.Context(), time.Minute) || tries != 2 {
			t.Errorf("after %d tries: %v", tries, p.conn.Last())
		}
	})
}
