package switchagent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/grpcwindow"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

const (
	maxMessage  = 64 << 20         // a sync of many branches
	requestTime = 30 * time.Second // of a request without deadline
)

func clientOptions() []grpc.DialOption {
	return append(grpcwindow.Dial(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		reconnect)
}

// reconnect makes connections to the switch and to other agents come back soon.
var reconnect = grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second,
	Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}})

// newServer makes the gRPC server with all services, for as long as ctx.
func (a *Agent) newServer(ctx context.Context) (*grpc.Server, error) {
	creds, err := a.files().Server()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	limit := &streamLimit{open: map[string]int{}}
	s := grpcserver.New(grpcserver.Config{Log: a.log, Metrics: a.metrics.server, Health: a.health(ctx), MaxMessage: maxMessage,
		MinPing: 5 * time.Second, Time: requestTime, Explain: a.explain, Stream: []grpc.StreamServerInterceptor{limit.intercept},
		Client: identity.Certified, PerClient: maxConns}, creds)
	mcrdmav1.RegisterSwitchGroupsServer(s, &groupsServer{a: a})
	mcrdmav1.RegisterSwitchPeerServer(s, &peerServer{a: a})
	mcrdmav1.RegisterSwitchStatusServer(s, &statusServer{a: a})
	return s, nil
}

// health reports SERVING while the agent controls its switch, from when the switch is first in the
// desired state: see Ready.
func (a *Agent) health(ctx context.Context) *health.Server {
	h := health.NewServer()
	h.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	a.wg.Go(func() {
		if !a.start.restored.wait(ctx) {
			return
		}
		for {
			status := healthpb.HealthCheckResponse_NOT_SERVING
			if _, s := a.driver.current(); s != nil {
				status = healthpb.HealthCheckResponse_SERVING
			}
			h.SetServingStatus("", status)
			select {
			case <-a.driver.turned:
			case <-ctx.Done():
				return
			}
		}
	})
	return h
}

// maxConns is the maximum number of connections of one host, switch or administrator. A daemon has one, and so has each
// tool; many tools may share an administrator's certificate.
const maxConns = 256

// maxStreams is the maximum number of open streams of one host. A daemon needs one or two.
const maxStreams = 16

// A streamLimit bounds the open streams of each host.
type streamLimit struct {
	mu   sync.Mutex
	open map[string]int // by the host's name
}

func (l *streamLimit) intercept(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	id, err := identity.FromContext(s.Context())
	if err != nil {
		return err
	}
	if !id.Is(identity.Host) {
		return handle(srv, s)
	}
	if !l.add(id.Name, 1) {
		return fmt.Errorf("%w: host %s has %d streams open, and may have no more", ErrLimit, id.Name, maxStreams)
	}
	defer l.add(id.Name, -1)
	return handle(srv, s)
}

// add changes the number of a host's open streams, unless it would be too large.
func (l *streamLimit) add(name string, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 && l.open[name] >= maxStreams {
		return false
	}
	if l.open[name] += n; l.open[name] == 0 {
		delete(l.open, name)
	}
	return true
}

type groupsServer struct {
	mcrdmav1.UnimplementedSwitchGroupsServer
	a *Agent
}

func (s *groupsServer) Install(ctx context.Context, req *mcrdmav1.InstallRequest) (*mcrdmav1.InstallResponse, error) {
	a := s.a
	lease := req.GetLease().AsDuration()
	if lease == 0 {
		lease = a.cfg.Leases.Group
	}
	g, err := groupFrom(req.GetGroup(), lease)
	if err != nil {
		return nil, err
	}
	if err := a.owner(ctx, g.Source); err != nil {
		return nil, err
	}
	if !a.cfg.Programmable {
		return nil, fmt.Errorf("%w: this switch is configured to route only", bifurcation.ErrNoMergePoint)
	}
	return &mcrdmav1.InstallResponse{Lease: durationpb.New(lease), MaxPackets: uint32(a.cfg.Limits.Packets)}, //nolint:gosec // checked
		a.install(ctx, g)
}

func (s *groupsServer) Update(ctx context.Context, req *mcrdmav1.UpdateRequest) (*mcrdmav1.UpdateResponse, error) {
	k, err := s.key(ctx, req.GetKey())
	if err != nil {
		return nil, err
	}
	receivers, err := receiversFrom(req.GetReceivers())
	if err == nil && req.InitialPsn != nil && req.GetInitialPsn() > 0xffffff {
		err = invalid("PSN %#x has more than 24 bits", req.GetInitialPsn())
	}
	if err == nil {
		err = s.a.update(ctx, k, receivers, req.InitialPsn)
	}
	return &mcrdmav1.UpdateResponse{}, err
}

func (s *groupsServer) Remove(ctx context.Context, req *mcrdmav1.RemoveRequest) (*mcrdmav1.RemoveResponse, error) {
	k, err := s.key(ctx, req.GetKey())
	if err != nil {
		return nil, err
	}
	if err = s.a.remove(ctx, k, mcrdmav1.WatchResponse_TYPE_REMOVED); errors.Is(err, ErrNotFound) {
		err = nil
	}
	return &mcrdmav1.RemoveResponse{}, err
}

func (s *groupsServer) Renew(ctx context.Context, req *mcrdmav1.RenewRequest) (*mcrdmav1.RenewResponse, error) {
	var keys []groups.Key
	for _, x := range req.GetKeys() {
		k, err := s.key(ctx, x)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	res := &mcrdmav1.RenewResponse{}
	for i, k := range keys {
		if !s.a.table.Renew(k, req.GetKeys()[i].GetNumber(), time.Now()) {
			res.Missing = append(res.Missing, groupKeyProto(k))
		}
	}
	return res, nil
}

func (s *groupsServer) Get(ctx context.Context, req *mcrdmav1.GetRequest) (*mcrdmav1.GetResponse, error) {
	k, err := s.key(ctx, req.GetKey())
	if err != nil {
		return nil, err
	}
	g := s.a.table.Installed(k)
	if g == nil {
		return nil, fmt.Errorf("%w: %v", ErrNotFound, k)
	}
	if !req.GetCounters() {
		return &mcrdmav1.GetResponse{Group: s.a.describe(s.a.table.View(g))}, nil
	}
	session, err := s.a.driver.there(ctx)
	if err != nil {
		return nil, err
	}
	v := s.a.table.View(g)
	out := s.a.describe(v)
	return &mcrdmav1.GetResponse{Group: out}, count(ctx, session, v, out, req.GetAcked())
}

func (s *groupsServer) List(ctx context.Context, req *mcrdmav1.ListRequest) (*mcrdmav1.ListResponse, error) {
	sees, err := s.sees(ctx, req.GetSource())
	if err != nil {
		return nil, err
	}
	return &mcrdmav1.ListResponse{Groups: s.a.describeAll(sees)}, nil
}

func (s *groupsServer) Watch(req *mcrdmav1.WatchRequest, out grpc.ServerStreamingServer[mcrdmav1.WatchResponse]) error {
	sees, err := s.sees(out.Context(), req.GetSource())
	if err != nil {
		return err
	}
	w, end := s.a.events.Watch(func(e groupEvent) bool { return sees(e.source) })
	defer end()
	for _, g := range s.a.describeAll(sees) {
		if err := out.Send(&mcrdmav1.WatchResponse{Type: mcrdmav1.WatchResponse_TYPE_INSTALLED, Group: g}); err != nil {
			return err
		}
	}
	if err := out.Send(&mcrdmav1.WatchResponse{Type: mcrdmav1.WatchResponse_TYPE_SYNCED}); err != nil {
		return err
	}
	for {
		select {
		case e, ok := <-w.Events:
			if !ok {
				return out.Send(&mcrdmav1.WatchResponse{Type: mcrdmav1.WatchResponse_TYPE_LOST})
			}
			if err := out.Send(e.WatchResponse); err != nil {
				return err
			}
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

// key reads a group's key; the caller must be allowed to manage the group.
func (s *groupsServer) key(ctx context.Context, k *mcrdmav1.GroupKey) (groups.Key, error) {
	key, err := groupKeyFrom(k)
	if err == nil {
		err = s.a.owner(ctx, key.Source)
	}
	return key, err
}

// sees returns whose groups the caller wants to see, and may.
func (s *groupsServer) sees(ctx context.Context, source string) (func(netip.Addr) bool, error) {
	id, err := s.a.caller(ctx, identity.Host, identity.Admin, identity.Switch)
	if err != nil {
		return nil, err
	}
	var only netip.Addr
	if source != "" {
		if only, err = addrFrom(source, "source"); err != nil {
			return nil, err
		}
	}
	return func(a netip.Addr) bool { return (source == "" || a == only) && maySee(id, a) }, nil
}

type peerServer struct {
	mcrdmav1.UnimplementedSwitchPeerServer
	a *Agent
}

// from returns the calling switch. It must be in the configuration.
func (s *peerServer) from(ctx context.Context) (bifurcation.Switch, error) {
	id, err := s.a.caller(ctx, identity.Switch)
	if err != nil {
		return "", err
	}
	for _, x := range s.a.cfg.Switches {
		if x.Name == id.Name {
			return bifurcation.Switch(id.Name), nil
		}
	}
	return "", fmt.Errorf("%w: switch %s is not in the configuration of switch %s", ErrDenied, id.Name, s.a.name)
}

func (s *peerServer) Hold(ctx context.Context, req *mcrdmav1.HoldRequest) (*mcrdmav1.HoldResponse, error) {
	from, err := s.from(ctx)
	if err != nil {
		return nil, err
	}
	b, h := groups.Branch{From: from}, groups.Holder{Spec: groups.Spec{Generation: req.GetGeneration()}, Sequence: req.GetSequence()}
	b.Key, err = stepKeyFrom(req.GetGroup(), req.GetDestination())
	if err == nil {
		h.Receivers, err = receiversFrom(req.GetReceivers())
	}
	if err == nil {
		h.Via, err = viaFrom(req.GetVia(), from)
	}
	if err == nil {
		err = s.a.take(ctx, b, h)
	}
	return &mcrdmav1.HoldResponse{}, err
}

func (s *peerServer) Release(ctx context.Context, req *mcrdmav1.ReleaseRequest) (*mcrdmav1.ReleaseResponse, error) {
	from, err := s.from(ctx)
	if err != nil {
		return nil, err
	}
	k, err := stepKeyFrom(req.GetGroup(), req.GetDestination())
	if err == nil {
		err = s.a.endHold(ctx, groups.Branch{Key: k, From: from}, groups.UpTo(req.GetSequence()))
	}
	return &mcrdmav1.ReleaseResponse{}, err
}

func (s *peerServer) Sync(ctx context.Context, req *mcrdmav1.SyncRequest) (*mcrdmav1.SyncResponse, error) {
	from, err := s.from(ctx)
	if err != nil {
		return nil, err
	}
	held := make(map[groups.StepKey]uint64, len(req.GetBranches()))
	for _, b := range req.GetBranches() {
		k, err := stepKeyFrom(b.GetGroup(), b.GetDestination())
		if err != nil {
			return nil, err
		}
		held[k] = b.GetSequence()
	}
	if err := s.a.settledRoutes(ctx); err != nil {
		return nil, err
	}
	res := &mcrdmav1.SyncResponse{}
	for _, k := range s.a.sync(ctx, from, req.GetSequence(), held) {
		res.Missing = append(res.Missing, &mcrdmav1.HeldBranch{Group: groupKeyProto(k.Key), Destination: k.Dst.String(), Sequence: held[k]})
	}
	return res, nil
}
