package connmgr

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// An app is an application: a client, and what it has been told.
type app struct {
	r     *rig
	h     *host
	rpc   mcrdmav1.ApplicationsClient
	token string
	hello *mcrdmav1.Hello
	end   func() // closes the stream and waits for that

	mu       sync.Mutex
	accept   func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest // nil answer: none
	attached map[uint64]*mcrdmav1.AttachRequested
	formed   map[uint64]*mcrdmav1.FormationInfo
	detached map[uint64]*mcrdmav1.Detached
	changes  []*mcrdmav1.GroupChanged
	counters *mcrdmav1.DeviceCounters // nil: the application does not answer
	ended    error
}

// dial connects an application's process to a daemon.
func (h *host) dial() *grpc.ClientConn {
	if h.r.net == nil {
		return h.connect("unix:"+h.m.Socket(), grpc.EmptyDialOption{})
	}
	h.r.net.SetUser(h.name+"/app", 0)
	return h.connect("passthrough:///"+h.m.Socket(), h.r.from(h.name+"/app"))
}

func (h *host) connect(target string, dial grpc.DialOption) *grpc.ClientConn {
	h.r.t.Helper()
	c, err := grpc.NewClient(target, dial, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		h.r.t.Fatal(err)
	}
	h.conns = append(h.conns, c)
	return c
}

// app opens a session; token is that of one that is to be resumed.
func (h *host) app(token string) *app {
	h.r.t.Helper()
	a := &app{r: h.r, h: h, rpc: mcrdmav1.NewApplicationsClient(h.dial()), attached: map[uint64]*mcrdmav1.AttachRequested{},
		formed: map[uint64]*mcrdmav1.FormationInfo{}, detached: map[uint64]*mcrdmav1.Detached{}}
	a.open(token)
	return a
}

func (a *app) open(token string) {
	t := a.r.t
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var s grpc.ServerStreamingClient[mcrdmav1.OpenResponse]
	var e *mcrdmav1.OpenResponse
	var err error
	a.r.until("the daemon answers", func() bool {
		s, err = a.rpc.Open(ctx, &mcrdmav1.OpenRequest{Program: "test", Version: ProtocolVersion, Token: token, Views: a.h.views}, grpc.WaitForReady(true))
		if err == nil {
			e, err = s.Recv()
		}
		return status.Code(err) != codes.Unavailable // the connection was another daemon's, which has gone
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	a.hello = e.GetHello()
	a.token = a.hello.GetToken()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			e, err := s.Recv()
			if err != nil {
				a.mu.Lock()
				a.ended = err
				a.mu.Unlock()
				return
			}
			a.event(e)
		}
	}()
	a.end = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(func() { a.end() })
}

func (a *app) event(e *mcrdmav1.OpenResponse) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch e := e.GetEvent().(type) {
	case *mcrdmav1.OpenResponse_AttachRequested:
		x := e.AttachRequested
		a.attached[x.GetAttach()] = x
		if a.accept == nil {
			return
		}
		if ans := a.accept(x); ans != nil {
			ans.Token, ans.Attach = a.token, x.GetAttach()
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				_, _ = a.rpc.AnswerAttach(ctx, ans)
			}()
		}
	case *mcrdmav1.OpenResponse_AttachFormed:
		a.formed[e.AttachFormed.GetAttach()] = e.AttachFormed.GetFormation()
	case *mcrdmav1.OpenResponse_Detached:
		a.detached[e.Detached.GetAttach()] = e.Detached
	case *mcrdmav1.OpenResponse_CountersRequested:
		if a.counters != nil {
			req := &mcrdmav1.AnswerCountersRequest{Token: a.token, Call: e.CountersRequested.GetCall(), Device: a.counters}
			go func() { _, _ = a.rpc.AnswerCounters(context.Background(), req) }()
		}
	case *mcrdmav1.OpenResponse_GroupChanged:
		a.changes = append(a.changes, e.GroupChanged)
	}
}

func (a *app) setAccept(f func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.accept = f
}

// willing accepts whatever it is asked.
func willing(x *mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
	out := &mcrdmav1.AnswerAttachRequest{Bootstrap: "127.0.0.1:7000", Transport: "rdma"}
	if x.GetConnection() != nil {
		out.Qpn = 0x100 + x.GetFormation()
	}
	for i := range x.GetRegions() {
		out.Regions = append(out.Regions, &mcrdmav1.ReceiverRegion{Rkey: uint32(0x1000 + i), Va: uint64(0x7f0000000000 + i<<20)})
	}
	return out
}

// receiver is an application that listens for "store" and is willing.
func (h *host) receiver() *app {
	h.r.t.Helper()
	a := h.app("")
	a.setAccept(willing)
	if _, err := a.rpc.Listen(h.r.t.Context(), &mcrdmav1.ListenRequest{Token: a.token, Service: "store"}); err != nil {
		h.r.t.Fatal(err)
	}
	return a
}

// receivers are those of hosts 2 to n.
func (r *rig) receivers() []*app {
	var out []*app
	for _, h := range r.hosts[1:] {
		out = append(out, h.receiver())
	}
	return out
}

// request is one of host 1 for all others.
func (a *app) request() *mcrdmav1.CreateGroupRequest {
	req := &mcrdmav1.CreateGroupRequest{Token: a.token, Service: "store", Mtu: 1024,
		Regions: []*mcrdmav1.RegionSpec{{Name: "log", Length: 1 << 20}, {Name: "index", Length: 4096}},
		Forming: &mcrdmav1.Forming{Qpn: 0x42, Bootstrap: "127.0.0.1:7001"}}
	for _, h := range a.r.hosts {
		if h != a.h {
			req.Receivers = append(req.Receivers, h.name)
		}
	}
	return req
}

func (a *app) create(req *mcrdmav1.CreateGroupRequest) *mcrdmav1.CreateGroupResponse {
	a.r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	res, err := a.rpc.CreateGroup(ctx, req)
	if err != nil {
		a.r.t.Fatalf("CreateGroup: %v", err)
	}
	return res
}

// waitChange waits for an event of that type, and returns it.
func (a *app) waitChange(t mcrdmav1.GroupChanged_Type) *mcrdmav1.GroupChanged {
	a.r.t.Helper()
	var out *mcrdmav1.GroupChanged
	a.r.until(fmt.Sprintf("event %v", t), func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, c := range a.changes {
			if c.GetType() == t {
				out = c
			}
		}
		return out != nil
	})
	return out
}

// await is waitChange while time passes.
func (a *app) await(t mcrdmav1.GroupChanged_Type) *mcrdmav1.GroupChanged {
	a.r.t.Helper()
	a.r.passUntil(fmt.Sprintf("event %v", t), func() bool { return a.countChanges(t) > 0 })
	return a.waitChange(t)
}

// passUntil lets time pass until something is so, but not for long.
func (r *rig) passUntil(what string, f func() bool) {
	r.t.Helper()
	for range 500 {
		r.pass(100 * time.Millisecond)
		for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); time.Sleep(200 * time.Microsecond) {
			if f() {
				return
			}
		}
	}
	r.t.Fatalf("not so after a long time: %s", what)
}

func (a *app) countChanges(t mcrdmav1.GroupChanged_Type) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, c := range a.changes {
		if c.GetType() == t {
			n++
		}
	}
	return n
}
