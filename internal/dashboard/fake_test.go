package dashboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grouptree"
)

// A fake is an agent within the process.
type fake struct {
	mcrdmav1.SwitchStatusClient
	mcrdmav1.SwitchGroupsClient

	mu     sync.Mutex
	status *mcrdmav1.GetStatusResponse
	groups []*mcrdmav1.GroupStatus
	steps  []*mcrdmav1.Step
	err    error // of all calls
	hangs  bool
	gets   int
	watch  chan *mcrdmav1.WatchResponse
}

var errDead = errors.New("agent cannot be reached: connection refused")

func (f *fake) do(edit func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit()
}

func (f *fake) wrong(ctx context.Context) error {
	f.mu.Lock()
	hangs, err := f.hangs, f.err
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (f *fake) GetStatus(ctx context.Context, _ *mcrdmav1.GetStatusRequest, _ ...grpc.CallOption) (*mcrdmav1.GetStatusResponse, error) {
	if err := f.wrong(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return proto.CloneOf(f.status), nil
}

func (f *fake) ListSteps(ctx context.Context, r *mcrdmav1.ListStepsRequest, _ ...grpc.CallOption) (*mcrdmav1.ListStepsResponse, error) {
	out := &mcrdmav1.ListStepsResponse{Switch: f.status.GetName()}
	for _, s := range f.steps {
		if r.GetGroup().GetMcId() == s.GetGroup().GetMcId() {
			out.Steps = append(out.Steps, s)
		}
	}
	return out, f.wrong(ctx)
}

func (f *fake) GetCounters(ctx context.Context, _ *mcrdmav1.GetCountersRequest, _ ...grpc.CallOption) (*mcrdmav1.GetCountersResponse, error) {
	return &mcrdmav1.GetCountersResponse{Counters: []*mcrdmav1.Counter{{Name: "egress.drops", Cell: "absorbed", Packets: 40}}}, f.wrong(ctx)
}

func (f *fake) Get(ctx context.Context, r *mcrdmav1.GetRequest, _ ...grpc.CallOption) (*mcrdmav1.GetResponse, error) {
	if err := f.wrong(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gets++
	for _, g := range f.groups {
		if g.GetGroup().GetKey().GetMcId() == r.GetKey().GetMcId() {
			return &mcrdmav1.GetResponse{Group: proto.CloneOf(g)}, nil
		}
	}
	return nil, errors.New("no such group")
}

func (f *fake) Watch(ctx context.Context, _ *mcrdmav1.WatchRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[mcrdmav1.WatchResponse], error) {
	if err := f.wrong(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watch = make(chan *mcrdmav1.WatchResponse, 100)
	w := &watching{ctx: ctx, more: f.watch}
	for _, g := range f.groups {
		g = proto.CloneOf(g)
		g.Members, g.Packets, g.Bytes = nil, 0, 0
		w.first = append(w.first, &mcrdmav1.WatchResponse{Type: mcrdmav1.WatchResponse_TYPE_INSTALLED, Group: g})
	}
	w.first = append(w.first, &mcrdmav1.WatchResponse{Type: mcrdmav1.WatchResponse_TYPE_SYNCED})
	return w, nil
}

type watching struct {
	grpc.ClientStream
	ctx   context.Context
	first []*mcrdmav1.WatchResponse
	more  <-chan *mcrdmav1.WatchResponse
}

func (w *watching) Recv() (*mcrdmav1.WatchResponse, error) {
	if len(w.first) > 0 {
		e := w.first[0]
		w.first = w.first[1:]
		return e, nil
	}
	select {
	case e, ok := <-w.more:
		if !ok {
			return nil, io.EOF
		}
		return e, nil
	case <-w.ctx.Done():
		return nil, w.ctx.Err()
	}
}

// key is that of one of torA's groups: 10.1.0.1/1, with MC_ID 0x002710, and so on.
func key(i int) *mcrdmav1.GroupKey {
	return &mcrdmav1.GroupKey{Source: "10.1.0.1", McId: uint32(10_000 + i), Number: uint64(1 + i)}
}

// rack makes two racks with a spine between them, and groups from torA to both.
func rack(groups int) map[string]*fake {
	ok := &mcrdmav1.P4RuntimeStatus{Connected: true, Primary: true}
	started := timestamppb.New(time.Unix(1_800_000_000, 0))
	port := func(n uint32, to string) *mcrdmav1.PortStatus {
		return &mcrdmav1.PortStatus{Port: n, Neighbor: to, State: "up", Since: started}
	}
	peer := func(name string) *mcrdmav1.PeerStatus {
		return &mcrdmav1.PeerStatus{Name: name, Agent: name + ":9560", Reachable: true, Branches: 1}
	}
	bgp := func(name string) *mcrdmav1.BgpNeighbor {
		return &mcrdmav1.BgpNeighbor{Switch: name, State: established, Since: started}
	}
	a, b, s := &fake{}, &fake{}, &fake{}
	a.status = &mcrdmav1.GetStatusResponse{Name: "torA", Started: started, P4Runtime: ok, Routing: "bgp", Settled: true, Groups: uint64(groups), Steps: uint64(groups),
		Ports: []*mcrdmav1.PortStatus{{Port: 1, State: "-"}, port(3, "spine"), port(4, "spine")}, Peers: []*mcrdmav1.PeerStatus{peer("spine")},
		Hosts: []*mcrdmav1.HostStatus{{Address: "10.1.0.1"}, {Address: "10.1.0.2"}}, Bgp: []*mcrdmav1.BgpNeighbor{bgp("spine")}}
	b.status = &mcrdmav1.GetStatusResponse{Name: "torB", Started: started, P4Runtime: ok, Routing: "bgp", Settled: true, Steps: uint64(groups),
		Ports: []*mcrdmav1.PortStatus{port(3, "spine")}, Peers: []*mcrdmav1.PeerStatus{peer("spine")},
		Hosts: []*mcrdmav1.HostStatus{{Address: "10.2.0.1"}}, Bgp: []*mcrdmav1.BgpNeighbor{bgp("spine")}}
	s.status = &mcrdmav1.GetStatusResponse{Name: "spine", Started: started, P4Runtime: ok, Routing: "bgp", Settled: true,
		Ports: []*mcrdmav1.PortStatus{port(1, "torA"), port(2, "torA"), port(3, "torB")}, Peers: []*mcrdmav1.PeerStatus{peer("torA"), peer("torB")},
		Bgp: []*mcrdmav1.BgpNeighbor{bgp("torA"), bgp("torB")}}
	for i := range groups {
		first, behind := uint32(1000), uint32(988)
		zero, twelve := uint32(0), uint32(12)
		a.groups = append(a.groups, &mcrdmav1.GroupStatus{Switch: "torA", Packets: 500, Bytes: 500_000,
			Group:   &mcrdmav1.Group{Key: key(i), SenderQpn: 7, Receivers: []*mcrdmav1.Receiver{{Address: "10.1.0.2", Qpn: 1}, {Address: "10.2.0.1", Qpn: 2}}},
			Members: []*mcrdmav1.MemberCounters{{Acks: 9, AckedPsn: &first, BehindPackets: &zero}, {Acks: 8, AckedPsn: &behind, BehindPackets: &twelve}}})
		a.steps = append(a.steps, &mcrdmav1.Step{Group: key(i), Destination: "10.1.0.2", Root: true, Generation: 1, Receivers: []string{"10.1.0.2", "10.2.0.1"},
			Copies: []*mcrdmav1.Copy{
				{Ports: []uint32{2}, Destination: "10.1.0.2", Last: true, Qpn: 1, Receivers: []string{"10.1.0.2"}},
				{Ports: []uint32{3, 4}, Destination: "10.2.0.1", Last: true, Qpn: 2, Receivers: []string{"10.2.0.1"}}}})
	}
	return map[string]*fake{"torA:9560": a, "torB:9560": b, "spine:9560": s}
}

// start runs a dashboard over agents until the test ends.
func start(t testing.TB, fakes map[string]*fake) *Dashboard {
	t.Helper()
	d := New("secret", Options{Meaning: func(cell string) (string, bool) { return "means " + cell, true },
		Find: func(context.Context) (list []Agent, err error) {
			for address, f := range fakes {
				list = append(list, Agent{Address: address, Agent: grouptree.Agent{Status: f, Groups: f}})
			}
			return list, nil
		}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return d
}

// cut takes one of the two links between torA and the spine, as torA sees it.
func cut(f *fake) {
	f.do(func() {
		p := f.status.Ports[2]
		p.State, p.Reason = "down", fmt.Sprintf("no hello for %v", 150*time.Millisecond)
	})
}
