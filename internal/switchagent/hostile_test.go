package switchagent

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
)

// A fakePeer serves SwitchPeer where another switch's agent should. A nil function
// answers with success, and does nothing.
type fakePeer struct {
	mcrdmav1.UnimplementedSwitchPeerServer
	server *grpc.Server

	mu      sync.Mutex
	hold    func(context.Context, *mcrdmav1.HoldRequest) error
	release func(context.Context, *mcrdmav1.ReleaseRequest) error
	sync    func(context.Context, *mcrdmav1.SyncRequest) (*mcrdmav1.SyncResponse, error)

	holds, releases, syncs atomic.Int64
}

func (f *fakePeer) Hold(ctx context.Context, r *mcrdmav1.HoldRequest) (*mcrdmav1.HoldResponse, error) {
	f.holds.Add(1)
	f.mu.Lock()
	do := f.hold
	f.mu.Unlock()
	if do == nil {
		return &mcrdmav1.HoldResponse{}, nil
	}
	return &mcrdmav1.HoldResponse{}, do(ctx, r)
}

func (f *fakePeer) Release(ctx context.Context, r *mcrdmav1.ReleaseRequest) (*mcrdmav1.ReleaseResponse, error) {
	f.releases.Add(1)
	f.mu.Lock()
	do := f.release
	f.mu.Unlock()
	if do == nil {
		return &mcrdmav1.ReleaseResponse{}, nil
	}
	return &mcrdmav1.ReleaseResponse{}, do(ctx, r)
}

func (f *fakePeer) Sync(ctx context.Context, r *mcrdmav1.SyncRequest) (*mcrdmav1.SyncResponse, error) {
	f.syncs.Add(1)
	f.mu.Lock()
	do := f.sync
	f.mu.Unlock()
	if do == nil {
		return &mcrdmav1.SyncResponse{}, nil
	}
	return do(ctx, r)
}

func (f *fakePeer) onHold(do func(context.Context, *mcrdmav1.HoldRequest) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = do
}

func (f *fakePeer) onRelease(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.release = func(context.Context, *mcrdmav1.ReleaseRequest) error {
		do()
		return nil
	}
}

func (f *fakePeer) onSync(do func(context.Context, *mcrdmav1.SyncRequest) (*mcrdmav1.SyncResponse, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sync = do
}

// listener takes the place where switch i's agent would serve.
func (l *line) listener(i int) net.Listener {
	l.t.Helper()
	n := l.nodes[i-1]
	l.program(i)
	listen := n.listen
	n.listen = nil
	if listen == nil {
		listen = l.listenAt(n.addr)
	}
	return listen
}

// program gives switch i the program, so that it can be read.
func (l *line) program(i int) {
	l.t.Helper()
	c, err := l.openSwitch(l.nodes[i-1].p4)
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	ctx := within(l.t, 10*time.Second)
	s, err := c.Open(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	defer s.Close()
	if err := s.WaitPrimary(ctx); err != nil {
		l.t.Fatal(err)
	}
	if err := s.PushPipeline(ctx); err != nil {
		l.t.Fatal(err)
	}
}

// fake runs a fakePeer in place of switch i's agent.
func (l *line) fake(i int) *fakePeer {
	l.t.Helper()
	f := &fakePeer{server: grpc.NewServer(grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(maxMessage))}
	mcrdmav1.RegisterSwitchPeerServer(f.server, f)
	listen := l.listener(i)
	served := make(chan struct{})
	go func() { defer close(served); _ = f.server.Serve(listen) }()
	l.t.Cleanup(func() { f.server.Stop(); <-served })
	return f
}

// twoHops is a group of sw1 of which sw2 should hold a branch.
func twoHops(id uint32) *mcrdmav1.Group {
	return aGroup(hostAddr(1, 1), id, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
}

func syncOften(c *config.Config, _ *Options) { c.Leases.Branch = time.Second }

// TestPeerThatRefuses: an install that another switch refuses, for whatever reason,
// changes nothing, and its reason comes through. If the other switch cannot tell
// branches apart, its part is done here.
func TestPeerThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		f := l.fake(2)
		l.start(1)
		before := l.snapshot()
		for i, r := range reasons {
			f.onHold(func(context.Context, *mcrdmav1.HoldRequest) error {
				return toStatus("sw7", fmt.Errorf("%w: as it wants", r.err))
			})
			g := twoHops(uint32(i + 1))
			_, err := l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: g})
			if r.reason == mcrdmav1.Reason_AMBIGUOUS {
				if err != nil {
					t.Fatal(err)
				}
				if have := canonical(l.state(1)); strings.Count(have, "last=true") != 6 {
					t.Errorf("no copies of its own for each receiver, by two ways:\n%s", have)
				}
				l.remove(1, g)
				continue
			}
			refused{status.Code(toStatus("sw7", r.err)), r.reason.String(), "sw7", []string{r.err.Error(), "as it wants"}}.check(t, r.reason.String(), err)
			l.unchanged(r.reason.String(), before)
		}
		l.noLeftovers()
	})
}

// garbage are answers that no agent gives.
func garbage() map[string]error {
	big := strings.Repeat("x", 512<<10)
	info := func(i *errdetails.ErrorInfo) error {
		s, err := status.New(codes.FailedPrecondition, "no").WithDetails(i)
		if err != nil {
			panic(err)
		}
		return s.Err()
	}
	p := status.New(codes.Internal, "odd").Proto()
	p.Details = []*anypb.Any{{TypeUrl: "type.googleapis.com/no.such.Type", Value: []byte(big)}, {TypeUrl: "type.googleapis.com/google.rpc.ErrorInfo", Value: []byte{0xff}}, {}}
	return map[string]error{
		"huge message":   status.Error(codes.Aborted, big),
		"huge text":      info(&errdetails.ErrorInfo{Domain: "mcrdma", Reason: "LOOP", Metadata: map[string]string{"switch": big, "text": big}}),
		"huge unknown":   status.ErrorProto(p),
		"no metadata":    info(&errdetails.ErrorInfo{Domain: "mcrdma", Reason: "LOOP"}),
		"unknown reason": info(&errdetails.ErrorInfo{Domain: "mcrdma", Reason: "FULL_MOON"}),
		"other domain":   info(&errdetails.ErrorInfo{Domain: "example.org", Reason: "AMBIGUOUS"}),
		"future stale": info(&errdetails.ErrorInfo{Domain: "mcrdma", Reason: "STALE",
			Metadata: map[string]string{"sequence": fmt.Sprint(uint64(math.MaxUint64))}}),
		"stale junk": info(&errdetails.ErrorInfo{Domain: "mcrdma", Reason: "STALE", Metadata: map[string]string{"sequence": "-1e9"}}),
		"no text":    status.Error(codes.Code(77), ""),
		"not UTF-8":  status.Error(codes.Unknown, "\xff\xfe"),
		"control":    status.Error(codes.Unknown, "\x00\n%00"),
	}
}

func TestPeerThatTalksGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		f := l.fake(2)
		l.start(1)
		before := l.snapshot()
		a := l.nodes[0].agent
		sequence := a.peers.sequence.Load()
		for name, answer := range garbage() {
			f.onHold(func(context.Context, *mcrdmav1.HoldRequest) error { return answer })
			_, err := l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: twoHops(1)})
			s := status.Convert(err)
			if s.Code() == codes.OK || s.Code() == codes.Internal || len(s.Message()) > 4000 || len(s.Details()) != 1 {
				t.Errorf("%s: %v %.300q, %d details", name, s.Code(), s.Message(), len(s.Details()))
			}
			l.unchanged(name, before)
			n := a.peers.sequence.Load()
			if n < sequence || n > 1<<62 {
				t.Fatalf("%s: the sequence is at %d, after %d", name, n, sequence)
			}
			sequence = n
		}
		st, err := mcrdmav1.NewSwitchStatusClient(l.conn(1)).GetStatus(t.Context(), &mcrdmav1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range st.GetPeers() {
			if len(p.GetError()) > 4000 {
				t.Errorf("the error kept of %s has %d bytes", p.GetName(), len(p.GetError()))
			}
		}
		l.noLeftovers()
	})
}

// TestPeerThatIsSlow: the caller gets an answer by its deadline, and a late success
// of the other changes nothing.
func TestPeerThatIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		f := l.fake(2)
		l.start(1)
		before := l.snapshot()
		asked := make(chan struct{}, 10)
		given := make(chan struct{}) // up
		f.onHold(func(context.Context, *mcrdmav1.HoldRequest) error {
			asked <- struct{}{}
			<-given
			return nil // done, but the answer comes too late
		})
		f.onRelease(sync.OnceFunc(func() { close(given) }))
		begun := time.Now()
		ctx := within(t, 300*time.Millisecond)
		done := make(chan error, 1)
		go func() {
			_, err := l.groups(1).Install(ctx, &mcrdmav1.InstallRequest{Group: twoHops(1)})
			done <- err
		}()
		<-asked
		// A group that is not installed yet is not shown, and cannot be changed.
		c := mcrdmav1.NewSwitchGroupsClient(l.conn(1))
		if res, err := c.Get(t.Context(), &mcrdmav1.GetRequest{Key: twoHops(1).Key}); status.Code(err) != codes.NotFound {
			t.Errorf("half a group: %v, %v", res, err)
		}
		if res, err := c.List(t.Context(), &mcrdmav1.ListRequest{}); err != nil || len(res.GetGroups()) != 0 {
			t.Errorf("half a group: %v, %v", res, err)
		}
		if res, err := c.Renew(t.Context(), &mcrdmav1.RenewRequest{Keys: []*mcrdmav1.GroupKey{twoHops(1).Key}}); err != nil || len(res.GetMissing()) != 1 {
			t.Errorf("half a group: %v, %v", res, err)
		}
		other := twoHops(1)
		other.Address = hostAddr(2, 1).String()
		_, err := c.Install(t.Context(), &mcrdmav1.InstallRequest{Group: other})
		refused{codes.AlreadyExists, "EXISTS", "sw1", nil}.check(t, "another group of that key", err)
		// The agent may have given up just before its caller.
		if err := <-done; status.Code(err) != codes.DeadlineExceeded && status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		eventually(t, "all is taken back", func() bool { return l.snapshot().differs(before) == "" && f.releases.Load() > 0 })
		f.onHold(nil)
		l.install(1, twoHops(1)) // the same once more, now it works
		l.remove(1, twoHops(1))
		l.noLeftovers()
	})
}

// TestPeerThatIsGone: whatever answers at another agent's address, or does not, an
// install fails in time, and all of it.
func TestPeerThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		listen := l.listener(2)
		addr := listen.Addr().String()
		l.start(1)
		before := l.snapshot()
		try := func(name string, limit time.Duration) {
			t.Helper()
			begun := time.Now()
			_, err := l.groups(1).Install(within(t, 20*time.Second), &mcrdmav1.InstallRequest{Group: twoHops(1)})
			refused{codes.Unavailable, "PEER", "sw1", []string{"another agent failed", "switch sw2"}}.check(t, name, err)
			if took := time.Since(begun); took > limit {
				t.Errorf("%s: it took %v", name, took)
			}
			l.unchanged(name, before)
			l.noLeftovers()
		}
		// serve does something with each connection until it is told to end.
		serve := func(do func(net.Conn)) (end func()) {
			if listen == nil {
				listen = l.listenAt(addr)
			}
			own := listen
			listen = nil
			var wg sync.WaitGroup
			var mu sync.Mutex
			conns := map[net.Conn]bool{}
			wg.Go(func() {
				for {
					c, err := own.Accept()
					if err != nil {
						return
					}
					mu.Lock()
					conns[c] = true
					mu.Unlock()
					wg.Go(func() { do(c) })
				}
			})
			return func() {
				_ = own.Close()
				mu.Lock()
				for c := range conns {
					_ = c.Close()
				}
				mu.Unlock()
				wg.Wait()
			}
		}
		read := func(c net.Conn) { // until it ends
			b := make([]byte, 1024)
			for {
				if _, err := c.Read(b); err != nil {
					return
				}
			}
		}
		end := serve(func(c net.Conn) { _ = c.Close() })
		try("closes", 5*time.Second)
		end()
		end = serve(func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n")); read(c) })
		try("is no gRPC server", 5*time.Second)
		end()
		end = serve(read)
		try("says nothing", callTime+undoTime+5*time.Second)
		end()
		try("refuses connections", 5*time.Second)

		// In the middle of a call: its server goes.
		for _, again := range []bool{false, true} {
			f := l.fake(2)
			if again {
				l.install(1, twoHops(2)) // the connection is up
				before = l.snapshot()
			}
			f.onHold(func(ctx context.Context, _ *mcrdmav1.HoldRequest) error {
				go f.server.Stop()
				<-ctx.Done()
				return nil
			})
			begun := time.Now()
			_, err := l.groups(1).Install(within(t, 20*time.Second), &mcrdmav1.InstallRequest{Group: twoHops(3)})
			refused{codes.Unavailable, "PEER", "sw1", []string{"switch sw2"}}.check(t, "dies", err)
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("dies: it took %v", took)
			}
			l.unchanged("dies", before)
		}
		l.fake(2)
		l.remove(1, twoHops(2))
		l.noLeftovers()
	})
}

// TestPeerThatForgets: a peer answers with success, and does nothing; at each sync it
// lacks everything. It is asked again, once at each sync, and nothing else happens.
func TestPeerThatForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		f := l.fake(2)
		f.onSync(func(_ context.Context, r *mcrdmav1.SyncRequest) (*mcrdmav1.SyncResponse, error) {
			res := &mcrdmav1.SyncResponse{Missing: r.GetBranches()}
			if n := len(r.GetBranches()); n > 0 { // twice each, and one that is not held
				res.Missing = append(res.Missing, r.GetBranches()...)
				res.Missing = append(res.Missing, &mcrdmav1.HeldBranch{Group: r.GetBranches()[0].GetGroup(), Destination: "10.9.9.9", Sequence: math.MaxUint64},
					&mcrdmav1.HeldBranch{Group: r.GetBranches()[0].GetGroup(), Destination: r.GetBranches()[0].GetDestination(), Sequence: math.MaxUint64},
					&mcrdmav1.HeldBranch{Destination: "junk"}, &mcrdmav1.HeldBranch{}, nil)
			}
			return res, nil
		})
		var written atomic.Int64
		l.start(1, syncOften, countWrites(&written))
		const groups = 10
		for id := range uint32(groups) {
			l.install(1, twoHops(id+1))
		}
		want := l.canonical()
		holds, syncs, writes := f.holds.Load(), f.syncs.Load(), written.Load()
		eventually(t, "some syncs", func() bool { return f.syncs.Load() >= syncs+4 })
		holds, syncs, writes = f.holds.Load()-holds, f.syncs.Load()-syncs, written.Load()-writes
		if holds == 0 || holds > (syncs+1)*groups {
			t.Errorf("%d holds of %d groups in %d syncs", holds, groups, syncs)
		}
		if writes > 0 {
			t.Errorf("%d writes to the switch, which is as it should be", writes)
		}
		if have := l.canonical(); !slices.Equal(have, want) {
			t.Errorf("have %v, want %v", have, want)
		}
		// With a peer that keeps what it is given, it ends; what was asked for earlier, or
		// never, does not count.
		f.onSync(func(_ context.Context, r *mcrdmav1.SyncRequest) (*mcrdmav1.SyncResponse, error) {
			for _, b := range r.GetBranches() {
				b.Sequence++
			}
			return &mcrdmav1.SyncResponse{Missing: r.GetBranches()}, nil
		})
		eventually(t, "the last repair", func() bool {
			holds, syncs := f.holds.Load(), f.syncs.Load()
			eventually(t, "two syncs", func() bool { return f.syncs.Load() >= syncs+2 })
			return f.holds.Load() == holds
		})
		for id := range uint32(groups) {
			l.remove(1, twoHops(id+1))
		}
		l.noLeftovers()
	})
}

func countWrites(n *atomic.Int64) func(*config.Config, *Options) {
	return func(_ *config.Config, o *Options) {
		o.DialSwitch = append(o.DialSwitch, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if strings.HasSuffix(method, "/Write") {
					n.Add(1)
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}))
	}
}

// TestPeerGoneRoundIsTriedAgain: a switch that refused what routes made necessary is
// bypassed, and tried again at syncs until it takes its part.
func TestPeerGoneRoundIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		f := l.fake(2)
		var refusing atomic.Bool
		f.onHold(func(context.Context, *mcrdmav1.HoldRequest) error {
			if refusing.Load() {
				return toStatus("sw2", fmt.Errorf("%w: no room", ErrLimit))
			}
			return nil
		})
		l.start(1, syncOften)
		l.install(1, twoHops(1))
		want := l.canonical()
		refusing.Store(true)
		a := l.nodes[0].agent
		for _, s := range a.table.Wanted() {
			a.table.Change(s, func(now *groups.State) { now.Behind = true })
		}
		a.rerun.wake()
		round := func() bool { return strings.Count(canonical(l.state(1)), "last=true") == 6 }
		eventually(t, "copies of its own", round)
		// It goes on refusing for some syncs; meanwhile it is asked at each.
		for range 3 {
			holds := f.holds.Load()
			eventually(t, "another try", func() bool { return f.holds.Load() > holds })
			if !round() {
				t.Errorf("have %v", l.canonical())
			}
		}
		refusing.Store(false)
		eventually(t, "what was before", func() bool { return slices.Equal(l.canonical(), want) })
		l.remove(1, twoHops(1))
		l.noLeftovers()
	})
}

// TestReleaseRefused: a switch that has not released a branch is told soon after what is held there.
func TestReleaseRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		f := l.fake(2)
		l.start(1)
		l.install(1, twoHops(1))
		time.Sleep(maxSyncPeriod * 3 / 2) // between two syncs
		f.mu.Lock()
		f.release = func(context.Context, *mcrdmav1.ReleaseRequest) error { return toStatus("sw2", ErrNotReady) }
		f.mu.Unlock()
		named := make(chan int, 1)
		f.onSync(func(_ context.Context, r *mcrdmav1.SyncRequest) (*mcrdmav1.SyncResponse, error) {
			select {
			case named <- len(r.GetBranches()):
			default:
			}
			return &mcrdmav1.SyncResponse{}, nil
		})
		begun := time.Now()
		l.remove(1, twoHops(1))
		if n := <-named; n != 0 || time.Since(begun) > 2*resync {
			t.Errorf("synced after %v, %d branches named", time.Since(begun), n)
		}
		l.noLeftovers()
	})
}
