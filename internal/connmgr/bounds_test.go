package connmgr

import (
	"context"
	"io"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// links is how many hosts a daemon keeps connections to, as it says itself.
func (a *app) links() int {
	a.r.t.Helper()
	res, err := a.rpc.GetDaemon(context.Background(), &mcrdmav1.GetDaemonRequest{})
	if err != nil {
		a.r.t.Fatal(err)
	}
	return len(res.GetPeers())
}

// TestNoSuchReceivers: an application names receivers that are not there, ever others. Nothing
// is kept of them.
func TestNoSuchReceivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		r.receivers()
		a := r.host(1).app("")
		req := a.request()
		for i := range 20 {
			req.Receivers = nil
			for n := range 16 {
				req.Receivers = append(req.Receivers, netip.AddrFrom4([4]byte{127, 50, byte(i), byte(n + 1)}).String())
			}
			if reason, _, _ := reasonOf(second(a.rpc.CreateGroup(t.Context(), req))); reason != "UNREACHABLE" {
				t.Fatalf("reason %q", reason)
			}
		}
		r.until("only the configured host is left", func() bool { return a.links() == 1 })
		r.wantNothing()
	})
}

// TestIdleHosts: of the connections to hosts that are not configured, some are kept for groups to
// come, and those of groups as long as these live.
func TestIdleHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		m, a := r.host(1).m, r.host(1).app("")
		r.receivers()
		addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 60, 0, byte(i)}) }
		target := r.host(2).listen
		g := m.newGroup(groupID{hostAddr(1), 1}, machine.Spec{}, newSession(machine.Owner{}, time.Now()), time.Now())
		g.status.Store(&machine.SenderStatus{Form: &formation{N: 1, Receivers: []machine.Receiver{{Addr: addr(0)}}}})
		for i := range 2 * maxIdlePeers { // all are h2's daemon
			m.peers.mu.Lock()
			p, err := m.peers.newPeer(config.Host{Address: addr(i), Daemon: target})
			if err != nil {
				t.Fatal(err)
			}
			m.peers.at[p.addr] = p
			p.users++
			m.peers.mu.Unlock()
			if i == 0 { // it is a group's receiver
				m.mu.Lock()
				m.groups[g.id] = g
				m.watch(g.form(), time.Now())
				m.mu.Unlock()
			}
			if !p.conn.Wait(t.Context(), time.Second) {
				t.Fatal("no connection")
			}
			r.pass(time.Millisecond)
			p.let()
		}
		if n := a.links(); n != 1+1+maxIdlePeers {
			t.Errorf("%d connections are kept, want %d idle ones, the configured and the group's", n, maxIdlePeers)
		}
		m.mu.Lock()
		delete(m.groups, g.id)
		m.mu.Unlock()
		m.peers.mu.Lock()
		for i, kept := range map[int]bool{0: true, 1: false, maxIdlePeers - 1: false, maxIdlePeers: true, 2*maxIdlePeers - 1: true} {
			if (m.peers.at[addr(i)] != nil) != kept {
				t.Errorf("connection %d: kept %v", i, !kept)
			}
		}
		m.peers.mu.Unlock()
	})
}

// TestManyCreations: an application makes many groups at the same time. It gets an error
// when they are too many, and other applications can still make theirs.
func TestManyCreations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		x := r.host(2).receiver()
		a, b := r.host(1).app(""), r.host(1).app("")
		gate := make(chan struct{})
		r.host(1).setHook(func(ctx context.Context, method string, _ *host, call func(context.Context) error) error {
			if method == "Prepare" {
				select {
				case <-gate:
				case <-ctx.Done():
				}
			}
			return call(ctx)
		})
		var limited, made atomic.Int64
		var wg sync.WaitGroup
		for range 2 * maxCreating {
			wg.Go(func() {
				_, err := a.rpc.CreateGroup(t.Context(), a.request())
				if reason, _, _ := reasonOf(err); reason == "LIMIT" && status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "wait for some") {
					limited.Add(1)
				} else if err == nil {
					made.Add(1)
				} else {
					t.Error(err)
				}
			})
		}
		r.until("the rest is refused", func() bool { return limited.Load() >= maxCreating })
		wg.Go(func() {
			if _, err := b.rpc.CreateGroup(t.Context(), b.request()); err != nil {
				t.Errorf("another application: %v", err)
			}
		})
		r.until("it is under way", func() bool { m := r.host(1).m; m.mu.Lock(); defer m.mu.Unlock(); return len(m.groups) == maxCreating+1 })
		close(gate)
		wg.Wait()
		if made.Load() != maxCreating || limited.Load() != maxCreating {
			t.Errorf("%d were made, %d refused", made.Load(), limited.Load())
		}
		a.create(a.request()) // there is room again
		a.end()
		b.end()
		r.wantNothing()
		x.end()
	})
}

// TestManyCreationsOfAll: the same of many applications.
func TestManyCreationsOfAll(t *testing.T) {
	m := &Manager{creating: semaphore.NewWeighted(maxCreatingAll)}
	var ends []func()
	for range maxCreatingAll / maxCreating {
		s := newSession(machine.Owner{}, time.Time{})
		for range maxCreating {
			leave, err := m.mayCreate(s)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, leave)
		}
	}
	late := newSession(machine.Owner{}, time.Time{})
	if _, err := m.mayCreate(late); err == nil || !strings.Contains(err.Error(), "try again later") {
		t.Errorf("%v", err)
	}
	for _, f := range ends {
		f()
	}
	if _, err := m.mayCreate(late); err != nil {
		t.Error(err)
	}
}

// TestManyStallReports: an application reports one stall, or one refusal, again and again
// at the same time. The switch's agent is asked as often as for one report, and all callers
// get the answer.
func TestManyStallReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, refuses := range []bool{false, true} {
			r := newRig(t, 3, withSwitch)
			v := r.victim()
			before := r.sw.called("Get")
			const reports = 100
			gate := make(chan struct{})
			var arrived atomic.Int64
			r.sw.set(func(_ context.Context, method string, _ any) error {
				if method == "Get" {
					<-gate
				}
				return nil
			}, nil)
			r.sw.mu.Lock()
			r.sw.counters["127.9.0.3"] = &mcrdmav1.MemberCounters{FatalNaks: 1}
			r.sw.mu.Unlock()
			var wg sync.WaitGroup
			for range reports {
				wg.Go(func() {
					arrived.Add(1)
					res, err := v.sender.rpc.ReportStall(t.Context(), &mcrdmav1.ReportStallRequest{Token: v.sender.token, Group: v.group, Formation: 1,
						Since: durationpb.New(time.Second), Refused: refuses})
					if err != nil {
						t.Error(err)
					} else if refuses && len(res.GetSuspects()) != 1 {
						t.Errorf("%v", res)
					}
				})
			}
			r.until("they are reported", func() bool { return arrived.Load() == reports })
			time.Sleep(100 * time.Millisecond) // those that are not there by then ask once more
			close(gate)
			wg.Wait()
			if n := r.sw.called("Get") - before; n > 2*machine.LooksEach || n == 0 {
				t.Errorf("refused %v: %d calls of the agent for %d reports", refuses, n, reports)
			}
		}
	})
}

// TestManyConnections: a host opens connections without end. The last ones work, the others are
// closed, and other hosts are served.
func TestManyConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withTLS)
		creds, err := r.host(3).files.Client(identity.Identity{})
		if err != nil {
			t.Fatal(err)
		}
		var conns []*grpc.ClientConn
		lost := func() (n int) {
			for _, c := range conns {
				if c.GetState() != connectivity.Ready {
					n++
				}
			}
			return n
		}
		for range 3 * maxHostConns {
			c, err := grpc.NewClient("passthrough:///"+r.host(2).listen, r.from("caller/test"), grpc.WithTransportCredentials(creds), grpc.WithDisableServiceConfig())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			if _, err := mcrdmav1.NewHostsClient(c).Beat(t.Context(), &mcrdmav1.BeatRequest{}); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		r.until("the oldest are closed", func() bool { return lost() >= 2*maxHostConns })
		if n := r.host(2).counter("mcrdma_daemon_connections_closed_total", ""); n < 2*maxHostConns {
			t.Errorf("%d are counted", n)
		}
		if _, err := mcrdmav1.NewHostsClient(conns[len(conns)-1]).Beat(t.Context(), &mcrdmav1.BeatRequest{}); err != nil {
			t.Errorf("the last one: %v", err)
		}
		if _, err := r.host(2).caller(r.host(1).files).Beat(t.Context(), &mcrdmav1.BeatRequest{}); err != nil {
			t.Errorf("another host: %v", err)
		}
	})
}

// connections opens n connections that send first and no more, and counts those that are open.
func (r *rig) connections(n int, from, to, first string) (open *atomic.Int32) {
	r.t.Helper()
	open = new(atomic.Int32)
	for range n {
		c, err := r.net.Dial(r.t.Context(), from, to)
		if err == nil {
			r.t.Cleanup(func() { _ = c.Close() })
			_, err = io.WriteString(c, first)
		}
		if err != nil {
			r.t.Fatal(err)
		}
		open.Add(1)
		go func() {
			_, _ = io.Copy(io.Discard, c)
			open.Add(-1)
		}()
		synctest.Wait()
	}
	return open
}

// TestManyStrangers: connections without end that say nothing, and so have shown no certificate. Few are kept, and not for
// long; other hosts are served.
func TestManyStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, withTLS)
		open := r.connections(3000, "stranger/test", r.host(2).listen, "")
		r.pass(time.Second)
		if n := open.Load(); n > 2048 {
			t.Errorf("%d are open", n)
		}
		if _, err := r.host(2).caller(r.host(1).files).Beat(t.Context(), &mcrdmav1.BeatRequest{}); err != nil {
			t.Errorf("a host: %v", err)
		}
		r.pass(10 * time.Second)
		if n := open.Load(); n > 0 {
			t.Errorf("%d are still open", n)
		}
		if n := r.host(2).counter("mcrdma_daemon_handshakes_failed_total", ""); n < 3000 {
			t.Errorf("%d are counted", n)
		}
	})
}

// TestManyConnectionsOfUser: a user of the host opens connections without end. The last ones are served.
func TestManyConnectionsOfUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		open := r.connections(maxUserConns+100, r.host(1).name+"/app", r.host(1).m.Socket(),
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00") // as HTTP/2 begins
		r.pass(time.Second)
		if n := open.Load(); n > maxUserConns {
			t.Errorf("%d are open", n)
		}
		if n := r.host(1).counter("mcrdma_daemon_connections_closed_total", ""); n < 100 {
			t.Errorf("%d are counted", n)
		}
		r.host(1).app("")
	})
}

// TestMovedForgotten: of hosts that are in no group any longer, nothing is kept but the connection.
func TestMovedForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, withSwitch)
		m := r.host(1).m
		gone := netip.MustParseAddr("127.60.0.1")
		if err := m.peers.follow(gone, time.Now()); err != nil {
			t.Fatal(err)
		}
		m.peers.noteAnswers(groupID{}, []netip.Addr{gone}, time.Now())
		m.beat(time.Now())
		m.peers.mu.Lock()
		defer m.peers.mu.Unlock()
		if len(m.peers.answers) > 0 || m.peers.health.Follows(gone) {
			t.Errorf("%v", m.peers.answers)
		}
	})
}
