package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/embedded"
)

// TestWaitFor: a wait of less than a second is not reported; a longer one is reported after a
// second, and then less and less often.
func TestWaitFor(t *testing.T) {
	for _, c := range []struct {
		after time.Duration // when it is ready; 0: never, and everything ends after 10 minutes
		lines int
	}{{999 * time.Millisecond, 0}, {2 * time.Second, 1}, {4 * time.Second, 2}, {0, 14}} { // at 1, 3, 7, 15, 31, 63, 123 s, and then each minute
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			begun := time.Now()
			waitFor(ctx, slog.New(slog.NewTextHandler(&out, nil)), func() bool { return c.after > 0 && time.Since(begun) >= c.after },
				func(context.Context) string { return "rain" })
			if n := strings.Count(out.String(), `msg="waiting for rain"`); n != c.lines {
				t.Errorf("there after %v: %d lines, want %d:\n%s", c.after, n, c.lines, &out)
			}
		})
	}
}

// TestEtcdSilent: members that accept no connection are named; this host's own is not asked. Why it
// is not in its cluster is reported, with what to do.
func TestEtcdSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	up, down := l.Addr().String(), gone.Addr().String()
	for _, c := range []struct{ h2, h3, want string }{
		{up, up, "etcd: its members can be reached, and it has not answered yet"},
		{up, down, "etcd: h3 does not answer: start mcblock (or etcd) there"},
		{down, down, "etcd: h2, h3 do not answer"},
	} {
		cfg := &config.Config{Name: "h1"}
		for i, at := range []string{down, c.h2, c.h3} {
			cfg.Etcd.Members = append(cfg.Etcd.Members, config.Member{Name: fmt.Sprint("h", i+1), Peer: at})
		}
		if got := etcdSilent(t.Context(), cfg); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s; want %s", got, c.want)
		}
	}
	for err, want := range map[error]string{nil: "", io.EOF: "", embedded.ErrRemoved: "take h1 out of etcd.members", embedded.ErrOtherCluster: "set join: true under etcd, remove /d/etcd",
		embedded.ErrReplaced: "set join: true under etcd, remove /d/etcd, and start", embedded.ErrLost: "etcd replace h1 h1=",
		embedded.ErrForeign: "put this host's own /d/etcd back"} {
		if got := memberTrouble(&config.Config{Name: "h1", Data: "/d"}, err); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%v: %s", err, got)
		}
	}
	s := &server{cfg: &config.Config{Name: "h1"}}
	if got := s.etcdWaits(t.Context(), fmt.Errorf("osdmap: host h1 with the number 2: %w", osdmap.ErrExists)); !strings.Contains(got, "id in h1's mcblock.yaml: osdmap: host h1 with the number 2") {
		t.Error(got)
	}
	cfg := &config.Config{Etcd: config.Etcd{Endpoints: []string{up, down}}}
	if got := etcdSilent(t.Context(), cfg); !strings.Contains(got, down+" does not") {
		t.Error(got)
	}
}
