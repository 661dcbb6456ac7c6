package connmgr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// maxMessage limits messages of others; the largest are beats for many groups.
const maxMessage = 4 << 20

// newServers makes the gRPC servers for other daemons and for applications.
func (m *Manager) newServers() (hosts, apps *grpc.Server, err error) {
	creds, err := m.files.Server()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if !m.files.Plain() {
		creds = newPerHost(creds, m.metrics.closed.Inc)
	}
	failed := func(err error) {
		m.metrics.handshakes.Inc()
		m.log.Warn("a connection was refused", "error", err)
	}
	options := []grpc.ServerOption{grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true})}
	hosts = grpc.NewServer(append(options, grpc.MaxConcurrentStreams(maxStreams), grpc.Creds(identity.Watched(creds, failed)), grpc.ChainUnaryInterceptor(m.unary))...)
	mcrdmav1.RegisterHostsServer(hosts, &hostsServer{m: m})
	h := health.NewServer() // it serves as long as the daemon does
	healthpb.RegisterHealthServer(hosts, h)
	reflection.Register(hosts)
	apps = grpc.NewServer(append(options, grpc.MaxConcurrentStreams(2*maxSessions), grpc.Creds(identity.Watched(peerCred{}, failed)), grpc.ChainUnaryInterceptor(m.unary, m.allowed), grpc.ChainStreamInterceptor(m.stream))...)
	mcrdmav1.RegisterApplicationsServer(apps, &appsServer{m: m})
	healthpb.RegisterHealthServer(apps, h)
	reflection.Register(apps)
	return hosts, apps, nil
}

// unary limits a request's time, and counts requests. A handler that panics ends the
// process: it may hold Manager.mu, and what is in memory may be wrong; what is durable is
// not.
func (m *Manager) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (res any, err error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.times.request)
		defer cancel()
	}
	begun := time.Now()
	res, err = handle(ctx, req)
	switch _, ok := status.FromError(err); {
	case ok:
	case m.life.Err() != nil:
		// A request that failed because the daemon ends is temporary: the caller tries
		// again when the daemon is back, as if it had not answered.
		err = status.Errorf(codes.Unavailable, "host %s: the daemon is being stopped", m.name)
	default:
		err = m.toStatus(err)
	}
	m.metrics.request(info.FullMethod, time.Since(begun), err)
	return res, err
}

// allowed says whether a user may use the daemon.
func (m *Manager) allowed(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := m.checkUser(ctx); err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

func (m *Manager) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	begun := time.Now()
	err := m.checkUser(s.Context())
	if err == nil {
		err = handle(srv, s)
	}
	if _, ok := status.FromError(err); !ok {
		err = m.toStatus(err)
	}
	m.metrics.request(info.FullMethod, time.Since(begun), err)
	return err
}

func (m *Manager) checkUser(ctx context.Context) error {
	u, err := userOf(ctx)
	if err != nil {
		return err
	}
	if users := m.cfg.Users; len(users) > 0 && !u.root() && !slices.Contains(users, u.uid) {
		return refuse(Denied, "user %d may not use this daemon: its configuration allows others only (users)", u.uid)
	}
	return nil
}

func (m *Manager) serveMetrics(fail context.CancelCauseFunc) (*http.Server, error) {
	if m.cfg.Metrics == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", m.cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("%w: metrics cannot be served: %w", ErrConfig, err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(m.metrics.registry, promhttp.HandlerOpts{}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	m.wg.Go(func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("serving metrics: %w", err))
		}
	})
	return s, nil
}
