package connmgr

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// A fakeSwitch is an agent that keeps groups in memory, and lets tests alter requests.
type fakeSwitch struct {
	mcrdmav1.UnimplementedSwitchGroupsServer
	mcrdmav1.UnimplementedSwitchStatusServer
	r      *rig
	addr   string
	server *grpc.Server
	health *health.Server

	mu       sync.Mutex
	groups   map[string]*mcrdmav1.GroupStatus
	before   func(ctx context.Context, method string, req any) error // instead of the request, if it fails
	after    func(method string) error                               // instead of the answer, if it fails
	wrap     func(ctx context.Context, method string, call func(context.Context) error) error
	watchers map[chan *mcrdmav1.WatchResponse]struct{}
	counters map[string]*mcrdmav1.MemberCounters // by address
	packets  uint64                              // of senders: one more with each question
	count    func(mcID uint32) *counted          // instead
	tree     []*mcrdmav1.Copy
	calls    map[string]int
	lost     string // why it has no switch
}

func newFakeSwitch(r *rig) *fakeSwitch {
	s := &fakeSwitch{r: r, groups: map[string]*mcrdmav1.GroupStatus{}, watchers: map[chan *mcrdmav1.WatchResponse]struct{}{},
		counters: map[string]*mcrdmav1.MemberCounters{}, calls: map[string]int{}}
	s.serve("127.0.0.1:0")
	return s
}

func (s *fakeSwitch) serve(addr string) {
	l := s.r.listen("torA/agent", addr)
	var files identity.Files
	if s.r.ca != nil {
		files = s.r.ca.Switch("torA")
	}
	creds, err := files.Server()
	if err != nil {
		s.r.t.Fatal(err)
	}
	s.addr = l.Addr().String()
	s.server = grpc.NewServer(grpc.Creds(creds), grpc.WaitForHandlers(true), grpc.UnaryInterceptor(s.intercept),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true})) // as the agent's
	mcrdmav1.RegisterSwitchGroupsServer(s.server, s)
	mcrdmav1.RegisterSwitchStatusServer(s.server, s)
	s.health = health.NewServer()
	healthpb.RegisterHealthServer(s.server, s.health)
	go func() { _ = s.server.Serve(l) }()
}

func (s *fakeSwitch) close() { s.server.Stop() }

// lose has the agent refuse groups since it has no switch, or take them again ("").
func (s *fakeSwitch) lose(why string) {
	s.mu.Lock()
	s.lost = why
	s.mu.Unlock()
	if why == "" {
		s.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	} else {
		s.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	}
}

func (s *fakeSwitch) GetStatus(context.Context, *mcrdmav1.GetStatusRequest) (*mcrdmav1.GetStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &mcrdmav1.GetStatusResponse{Name: "torA", WaitsFor: s.lost}, nil
}

func (s *fakeSwitch) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	_, method, _ := cut(info.FullMethod)
	s.mu.Lock()
	before, after, wrap := s.before, s.after, s.wrap
	s.calls[method]++
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx, method, req); err != nil {
			return nil, err
		}
	}
	var res any
	call := func(ctx context.Context) (err error) {
		res, err = h(ctx, req)
		return err
	}
	var err error
	if wrap != nil {
		err = wrap(ctx, method, call)
	} else {
		err = call(ctx)
	}
	if after != nil && err == nil {
		if err := after(method); err != nil {
			return nil, err
		}
	}
	return res, err
}

// cut splits "/package.Service/Method".
func cut(full string) (service, method string, ok bool) {
	for i := len(full) - 1; i > 0; i-- {
		if full[i] == '/' {
			return full[1:i], full[i+1:], true
		}
	}
	return "", full, false
}

// refused is an answer of an agent.
func refused(code codes.Code, reason, text string) error {
	st, err := status.New(code, "switch torA: "+text).WithDetails(&errdetails.ErrorInfo{Domain: failure.Domain, Reason: reason,
		Metadata: map[string]string{"switch": "torA", "text": text}})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

func name(k *mcrdmav1.GroupKey) string { return fmt.Sprintf("%s/%#x", k.GetSource(), k.GetMcId()) }

// list are the groups that are there.
func (s *fakeSwitch) list() []*mcrdmav1.GroupStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*mcrdmav1.GroupStatus
	for _, k := range slices.Sorted(maps.Keys(s.groups)) {
		out = append(out, proto.CloneOf(s.groups[k]))
	}
	return out
}

// set changes what happens to requests.
func (s *fakeSwitch) set(before func(ctx context.Context, method string, req any) error, after func(method string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.after = before, after
}

// A counted is what was counted of a group.
type counted struct {
	packets uint64
	acks    [5]uint64 // of each host, by its number
}

// countBy has f say what was counted; what it returns is read with mu.
func (s *fakeSwitch) countBy(f func(mcID uint32) *counted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count = f
}

// around makes f wrap requests; nil: nothing.
func (s *fakeSwitch) around(f func(ctx context.Context, method string, call func(context.Context) error) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrap = f
}

func (s *fakeSwitch) tell(t mcrdmav1.WatchResponse_Type, g *mcrdmav1.GroupStatus) {
	for w := range s.watchers {
		w <- &mcrdmav1.WatchResponse{Type: t, Group: proto.CloneOf(g)}
	}
}

// fakePackets is how many packets a sender may have under way.
const fakePackets = 777

func (s *fakeSwitch) Install(_ context.Context, req *mcrdmav1.InstallRequest) (*mcrdmav1.InstallResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := req.GetGroup()
	if s.lost != "" {
		return nil, refused(codes.Unavailable, "NOT_READY", s.lost)
	}
	if err := checkGroup(g); err != nil {
		return nil, refused(codes.InvalidArgument, "INVALID", err.Error())
	}
	k := name(g.GetKey())
	if old := s.groups[k]; old != nil && !proto.Equal(old.GetGroup(), g) {
		return nil, refused(codes.AlreadyExists, "EXISTS", "another group has these numbers")
	}
	s.groups[k] = &mcrdmav1.GroupStatus{Group: g, Switch: "torA"}
	s.tell(mcrdmav1.WatchResponse_TYPE_INSTALLED, s.groups[k])
	return &mcrdmav1.InstallResponse{Lease: durationpb.New(req.GetLease().AsDuration()), MaxPackets: fakePackets}, nil
}

// checkGroup is what every agent checks.
func checkGroup(g *mcrdmav1.Group) error {
	if _, err := netip.ParseAddr(g.GetKey().GetSource()); err != nil || g.GetKey().GetMcId() < 0x800000 || g.GetSenderQpn() == 0 ||
		len(g.GetReceivers()) == 0 || g.GetAddress() == "" {
		return errNot
	}
	for _, r := range g.GetReceivers() {
		if r.GetQpn() == 0 || r.GetAddress() == g.GetKey().GetSource() {
			return errNot
		}
		for _, x := range r.GetRegions() {
			if x.GetRkey() == 0 || x.GetReceiverRkey() == 0 || x.GetLength() == 0 {
				return errNot
			}
		}
	}
	return nil
}

func (s *fakeSwitch) Update(_ context.Context, req *mcrdmav1.UpdateRequest) (*mcrdmav1.UpdateResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[name(req.GetKey())]
	if g == nil {
		return nil, refused(codes.NotFound, "NOT_FOUND", "there is no such group")
	}
	for _, r := range req.GetReceivers() {
		if !slices.ContainsFunc(g.GetGroup().GetReceivers(), func(o *mcrdmav1.Receiver) bool { return proto.Equal(o, r) }) {
			return nil, refused(codes.InvalidArgument, "INVALID", "a new receiver")
		}
	}
	g.Group = proto.CloneOf(g.GetGroup())
	g.Group.Receivers = req.GetReceivers()
	s.tell(mcrdmav1.WatchResponse_TYPE_UPDATED, g)
	return &mcrdmav1.UpdateResponse{}, nil
}

func (s *fakeSwitch) Remove(_ context.Context, req *mcrdmav1.RemoveRequest) (*mcrdmav1.RemoveResponse, error) {
	s.drop(name(req.GetKey()), mcrdmav1.WatchResponse_TYPE_REMOVED)
	return &mcrdmav1.RemoveResponse{}, nil
}

func (s *fakeSwitch) drop(k string, why mcrdmav1.WatchResponse_Type) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups[k]; g != nil {
		delete(s.groups, k)
		s.tell(why, g)
	}
}

func (s *fakeSwitch) Renew(_ context.Context, req *mcrdmav1.RenewRequest) (*mcrdmav1.RenewResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &mcrdmav1.RenewResponse{}
	for _, k := range req.GetKeys() {
		if g := s.groups[name(k)]; g == nil {
			res.Missing = append(res.Missing, k)
		} else {
			g.Group.Key.Number = k.GetNumber()
		}
	}
	return res, nil
}

func (s *fakeSwitch) Get(_ context.Context, req *mcrdmav1.GetRequest) (*mcrdmav1.GetResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[name(req.GetKey())]
	if g == nil {
		return nil, refused(codes.NotFound, "NOT_FOUND", "there is no such group")
	}
	g = proto.CloneOf(g)
	s.packets++
	g.Packets = s.packets
	for i, r := range g.GetGroup().GetReceivers() {
		c := s.counters[r.GetAddress()]
		if c == nil {
			c = &mcrdmav1.MemberCounters{}
		}
		if s.count != nil {
			x := s.count(req.GetKey().GetMcId())
			g.Packets, c = x.packets, &mcrdmav1.MemberCounters{Acks: x.acks[i+2]}
		}
		g.Members = append(g.Members, proto.CloneOf(c))
	}
	return &mcrdmav1.GetResponse{Group: g}, nil
}

func (s *fakeSwitch) Watch(req *mcrdmav1.WatchRequest, out grpc.ServerStreamingServer[mcrdmav1.WatchResponse]) error {
	w := make(chan *mcrdmav1.WatchResponse, 1024)
	s.mu.Lock()
	for _, k := range slices.Sorted(maps.Keys(s.groups)) {
		if s.groups[k].GetGroup().GetKey().GetSource() == req.GetSource() {
			w <- &mcrdmav1.WatchResponse{Type: mcrdmav1.WatchResponse_TYPE_INSTALLED, Group: proto.CloneOf(s.groups[k])}
		}
	}
	w <- &mcrdmav1.WatchResponse{Type: mcrdmav1.WatchResponse_TYPE_SYNCED}
	s.watchers[w] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, w)
	}()
	for {
		select {
		case e := <-w:
			if e.GetGroup() != nil && e.GetGroup().GetGroup().GetKey().GetSource() != req.GetSource() {
				continue
			}
			if err := out.Send(e); err != nil {
				return err
			}
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

func (s *fakeSwitch) ListSteps(_ context.Context, req *mcrdmav1.ListStepsRequest) (*mcrdmav1.ListStepsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[name(req.GetGroup())]
	res := &mcrdmav1.ListStepsResponse{Switch: "torA"}
	if g == nil {
		return res, nil
	}
	step := &mcrdmav1.Step{Group: req.GetGroup(), Destination: g.GetGroup().GetAddress(), Root: true, Copies: s.tree}
	if s.tree == nil {
		for i, r := range g.GetGroup().GetReceivers() {
			step.Copies = append(step.Copies, &mcrdmav1.Copy{Ports: []uint32{uint32(i + 1)}, Destination: r.GetAddress(), Last: true, Qpn: r.GetQpn()})
		}
	}
	res.Steps = append(res.Steps, step)
	return res, nil
}
