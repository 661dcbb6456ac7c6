package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// A fakeAgent serves configured answers, and records its last caller.
type fakeAgent struct {
	mcrdmav1.UnimplementedSwitchGroupsServer
	mcrdmav1.UnimplementedSwitchStatusServer

	status   *mcrdmav1.GetStatusResponse
	routes   []*mcrdmav1.RouteStatus
	steps    []*mcrdmav1.Step
	groups   []*mcrdmav1.GroupStatus
	counters []*mcrdmav1.Counter
	hangs    bool
	fails    error

	addr string

	mu     sync.Mutex
	caller identity.Identity
	reads  int // of counters
	calls  int // of all kinds
}

// serve starts the agent on a loopback port until the test ends.
func (f *fakeAgent) serve(t testing.TB, creds credentials.TransportCredentials) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f.addr = l.Addr().String()
	g := grpc.NewServer(grpc.Creds(creds), grpc.UnaryInterceptor(f.note))
	mcrdmav1.RegisterSwitchGroupsServer(g, f)
	mcrdmav1.RegisterSwitchStatusServer(g, f)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // before it began
			t.Error(err)
		}
	})
}

func (f *fakeAgent) note(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	id, err := identity.FromContext(ctx)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.caller = id
	f.calls++
	f.mu.Unlock()
	if f.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if f.fails != nil {
		return nil, f.fails
	}
	return handle(ctx, req)
}

func (f *fakeAgent) GetStatus(context.Context, *mcrdmav1.GetStatusRequest) (*mcrdmav1.GetStatusResponse, error) {
	return f.status, nil
}

func (f *fakeAgent) ListRoutes(context.Context, *mcrdmav1.ListRoutesRequest) (*mcrdmav1.ListRoutesResponse, error) {
	return &mcrdmav1.ListRoutesResponse{Routes: f.routes}, nil
}

func (f *fakeAgent) ListSteps(_ context.Context, r *mcrdmav1.ListStepsRequest) (*mcrdmav1.ListStepsResponse, error) {
	out := &mcrdmav1.ListStepsResponse{Switch: f.status.GetName()}
	for _, s := range f.steps {
		if r.GetGroup() == nil || same(r.GetGroup(), s.GetGroup()) {
			out.Steps = append(out.Steps, s)
		}
	}
	return out, nil
}

// GetCounters counts: each call returns 100 more packets.
func (f *fakeAgent) GetCounters(context.Context, *mcrdmav1.GetCountersRequest) (*mcrdmav1.GetCountersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &mcrdmav1.GetCountersResponse{}
	for _, c := range f.counters {
		c = proto.CloneOf(c)
		if c.Packets > 0 {
			c.Packets += 100 * uint64(f.reads)
		}
		out.Counters = append(out.Counters, c)
	}
	f.reads++
	return out, nil
}

func (f *fakeAgent) List(_ context.Context, r *mcrdmav1.ListRequest) (*mcrdmav1.ListResponse, error) {
	if strings.HasPrefix(r.GetSource(), "192.0.2.") {
		return nil, status.Error(codes.InvalidArgument, "mcrdma: the source is refused\x1b[2J")
	}
	out := &mcrdmav1.ListResponse{}
	for _, g := range f.groups {
		if r.GetSource() == "" || g.GetGroup().GetKey().GetSource() == r.GetSource() {
			g = proto.CloneOf(g)
			g.Members, g.Packets = nil, 0
			out.Groups = append(out.Groups, g)
		}
	}
	return out, nil
}

func (f *fakeAgent) Get(_ context.Context, r *mcrdmav1.GetRequest) (*mcrdmav1.GetResponse, error) {
	for _, g := range f.groups {
		if same(r.GetKey(), g.GetGroup().GetKey()) {
			g = proto.CloneOf(g)
			g.Expires = nil
			return &mcrdmav1.GetResponse{Group: g}, nil
		}
	}
	return nil, status.Error(codes.NotFound, "mcrdma: no such group")
}

// began is the time that call shows as now.
var began = time.Now()

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(began.Add(-d)) }

// same compares keys as agents do: numbers are only to be shown.
func same(a, b *mcrdmav1.GroupKey) bool {
	return a.GetSource() == b.GetSource() && a.GetMcId() == b.GetMcId()
}

// labKey is the group of the lab, which has number 17 at its sender's daemon.
var labKey = &mcrdmav1.GroupKey{Source: "10.1.0.1", McId: 2049}

// lab starts the agents of two racks with a group across both; between them is a switch that is not
// programmable. Their addresses always have the same length.
func lab(t testing.TB) map[string]*fakeAgent {
	t.Helper()
	plain, err := identity.Files{}.Server()
	must(t, err)
	torA, torB := &fakeAgent{}, &fakeAgent{}
	torA.serve(t, plain)
	torB.serve(t, plain)
	ok := &mcrdmav1.P4RuntimeStatus{Target: "127.0.0.1:9559", Connected: true, Primary: true, Pushes: 1}
	torA.status = &mcrdmav1.GetStatusResponse{
		Name: "torA", Address: "10.255.0.1", Version: "v0.3.0", Started: ago(3 * time.Hour), P4Runtime: ok, Routing: "bgp", Settled: true,
		Ports: []*mcrdmav1.PortStatus{
			{Port: 1, State: "-"}, {Port: 2, State: "-"},
			{Port: 9, Neighbor: "core", State: "up", Mac: "02:00:00:00:0c:01", Since: ago(2 * time.Hour)},
			{Port: 10, Neighbor: "core", State: "down", Reason: "no hello for 150ms", Since: ago(50 * time.Hour)},
		},
		Peers: []*mcrdmav1.PeerStatus{{Name: "core"}, {Name: "torB", Agent: torB.addr, Reachable: true, Branches: 1}},
		Hosts: []*mcrdmav1.HostStatus{{Address: "10.1.0.1", Mac: "02:00:00:01:00:01", Port: 1}, {Address: "10.1.0.12", Mac: "02:00:00:01:00:0c", Port: 2}},
		Bgp: []*mcrdmav1.BgpNeighbor{
			{Switch: "core", Address: "192.0.2.9", Asn: 4200000009, NextHop: "10.0.0.1", State: "Established", Since: ago(2 * time.Hour), Received: 3, Accepted: 3, Advertised: 1},
			{Switch: "old", Address: "192.0.2.10", Asn: 4200000010, State: "no link"},
		},
		Usage:  []*mcrdmav1.Usage{{Resource: "ingress.groups", Used: 1, Size: 1024}, {Resource: "ingress.routes", Used: 900, Size: 1024}, {Resource: "ports"}},
		Groups: 1, Steps: 1,
	}
	torB.status = &mcrdmav1.GetStatusResponse{
		Name: "torB", Address: "10.255.0.2", Version: "v0.3.0", Started: ago(72 * time.Hour), P4Runtime: ok, Routing: "static", Settled: true,
		Peers: []*mcrdmav1.PeerStatus{{Name: "core"}, {Name: "torA", Agent: torA.addr, Held: 1}},
		Steps: 1,
	}
	torA.routes = []*mcrdmav1.RouteStatus{
		{Prefix: "10.1.0.0/24", Note: "hosts"},
		{Prefix: "10.1.0.12/32", Hops: []*mcrdmav1.HopStatus{{Port: 2, Mac: "02:00:00:01:00:0c", NextHop: 2}}},
		{Prefix: "10.2.0.0/24", Hops: []*mcrdmav1.HopStatus{
			{Port: 9, Neighbor: "core", Mac: "02:00:00:00:0c:01", NextHop: 3}, {Port: 10, Neighbor: "core", Mac: "02:00:00:00:0c:02", NextHop: 4}}},
		{Prefix: "10.9.0.0/16"},
	}
	torB.routes = []*mcrdmav1.RouteStatus{{Prefix: "10.2.0.0/24", Note: "hosts"}, {Prefix: "10.0.0.0/8", Hops: torA.routes[2].Hops}}
	torA.counters = []*mcrdmav1.Counter{
		{Name: "egress.replicas", Cell: "1", Packets: 5000, Bytes: 5_000_000},
		{Name: "egress.drops", Cell: "absorbed", Packets: 40, Bytes: 2480},
		{Name: "ingress.drops", Cell: "malformed"},
		{Name: "ingress.drops", Cell: "icrc", Packets: 7, Bytes: 7000},
		{Name: "ingress.groups", Cell: "10.1.0.1/2049", Packets: 5000, Bytes: 5_000_000},
		{Name: "ingress.drops", Cell: "no_route", Packets: 90, Bytes: 9000},
	}
	torA.groups = []*mcrdmav1.GroupStatus{{
		Group: &mcrdmav1.Group{Key: &mcrdmav1.GroupKey{Source: labKey.Source, McId: labKey.McId, Number: 17}, SenderQpn: 17, Receivers: []*mcrdmav1.Receiver{
			{Address: "10.2.0.11", Qpn: 33}, {Address: "10.2.0.12", Qpn: 34}, {Address: "10.1.0.12", Qpn: 35}}},
		Switch: "torA", Expires: ago(-2 * time.Hour), Packets: 5000,
		Members: []*mcrdmav1.MemberCounters{{Acks: 500, SequenceNaks: 3}, {Acks: 480, RnrNaks: 9}, {Acks: 500, Cnps: 4}},
	}}
	torA.steps = []*mcrdmav1.Step{{Group: labKey, Destination: "10.2.0.11", Root: true, Generation: 1, Receivers: []string{"10.2.0.11", "10.2.0.12", "10.1.0.12"},
		Copies: []*mcrdmav1.Copy{
			{Ports: []uint32{9, 10}, Destination: "10.2.0.11", Next: []string{"torB"}, Receivers: []string{"10.2.0.11", "10.2.0.12"}},
			{Ports: []uint32{2}, Destination: "10.1.0.12", Last: true, Qpn: 35, Receivers: []string{"10.1.0.12"}}}}}
	torB.steps = []*mcrdmav1.Step{{Group: labKey, Destination: "10.2.0.11", Generation: 1, Holders: []string{"torA"}, Receivers: []string{"10.2.0.11", "10.2.0.12"},
		Copies: []*mcrdmav1.Copy{
			{Ports: []uint32{1}, Destination: "10.2.0.11", Last: true, Qpn: 33, Receivers: []string{"10.2.0.11"}},
			{Ports: []uint32{2}, Destination: "10.2.0.12", Last: true, Qpn: 34, Receivers: []string{"10.2.0.12"}}}}}
	return map[string]*fakeAgent{"torA": torA, "torB": torB}
}
