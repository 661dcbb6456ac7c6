package connmgr

import (
	"context"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/connmgr/config"
)

// TestConnectAgain: a caller that waits for a connection learns at once that no daemon is
// there, but not that one try was lost. The error says which it was, in plain words.
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
		others := newPeers(m)
		defer others.close()
		p, err := others.newPeer(config.Host{Name: to.name, Address: to.addr, Daemon: to.listen})
		if err != nil {
			t.Fatal(err)
		}
		defer p.conn.Close()
		if !p.conn.Wait(t.Context(), time.Minute) || tries != 2 {
			t.Errorf("after %d tries: %v", tries, p.conn.Last())
		}

		silent := func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		refused := func(_ context.Context, target string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}
		for want, dial := range map[string]func(context.Context, string) (net.Conn, error){"(nothing came back in time)": silent, "(connection refused)": refused} {
			m.opts.Dial = dial
			x, err := others.newPeer(config.Host{Name: to.name, Address: to.addr, Daemon: to.listen})
			if err != nil {
				t.Fatal(err)
			}
			x.conn.Wait(t.Context(), 10*time.Second)
			text := x.explain(t.Context(), status.Error(codes.Unavailable, "no connection in time")).Error()
			if !strings.HasSuffix(text, want) || !strings.HasPrefix(text, "host h2: its daemon at "+to.listen+" does not answer: see whether") {
				t.Errorf("%s; want the end %s", text, want)
			}
			_ = x.conn.Close()
		}
	})
}
