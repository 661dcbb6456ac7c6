package connmgr

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/unixsock"
)

// maxMessage limits messages of others; the largest are beats for many groups.
const maxMessage = 4 << 20

// newServers makes the gRPC servers for other daemons and for applications.
func (m *Manager) newServers() (hosts, apps *grpc.Server, err error) {
	creds, err := m.files.Server()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c := grpcserver.Config{Log: m.log, Metrics: m.metrics.server, Health: health.NewServer(), // it serves as long as the daemon does
		MaxMessage: maxMessage, MinPing: 2 * time.Second, Time: requestTime, Explain: m.explain,
		Unary: []grpc.UnaryServerInterceptor{m.unary}, Client: identity.Certified, PerClient: maxHostConns, Closed: m.metrics.closed.Inc}
	hosts = grpcserver.New(c, creds, grpc.MaxConcurrentStreams(maxStreams))
	mcrdmav1.RegisterHostsServer(hosts, &hostsServer{m: m})
	c.Client, c.PerClient = userName, maxUserConns
	c.Unary = append(c.Unary, m.allowed)
	c.Stream = []grpc.StreamServerInterceptor{m.stream}
	apps = grpcserver.New(c, unixsock.Creds(), grpc.MaxConcurrentStreams(2*maxSessions))
	mcrdmav1.RegisterApplicationsServer(apps, &appsServer{m: m})
	return hosts, apps, nil
}

// explain converts an error of this host to a gRPC status.
func (m *Manager) explain(err error) error {
	if f := failure.Of(err); f != nil {
		out := *f
		out.Message = f.Error()
		if f.Host == "" && f.Switch == "" {
			out.Host = m.cfg.Name
		}
		return &out
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Errorf(codes.Internal, "host %s: %v", m.cfg.Name, err)
}

// unary makes the error of a request that failed because the daemon is ending temporary: the caller
// tries again when the daemon is back, as if it had not answered.
func (m *Manager) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	res, err := handle(ctx, req)
	if err != nil && m.life.Err() != nil {
		err = status.Errorf(codes.Unavailable, "host %s: the daemon is being stopped", m.cfg.Name)
	}
	return res, err
}

// allowed says whether a user may use the daemon.
func (m *Manager) allowed(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := m.checkUser(ctx); err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

func (m *Manager) stream(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := m.checkUser(s.Context()); err != nil {
		return err
	}
	return handle(srv, s)
}

// userOf returns the user of a request of an application, which checkUser has allowed.
func userOf(ctx context.Context) unixsock.User {
	u, err := unixsock.UserOf(ctx)
	if err != nil {
		panic(err)
	}
	return u
}

func userName(ctx context.Context) (string, error) {
	u, err := unixsock.UserOf(ctx)
	return fmt.Sprint(u.UID), err
}

func (m *Manager) checkUser(ctx context.Context) error {
	u, err := unixsock.UserOf(ctx)
	if err != nil {
		return err
	}
	if users := m.cfg.Users; len(users) > 0 && u.UID != 0 && !slices.Contains(users, u.UID) {
		return failure.New(mcrdmav1.Reason_DENIED, "user %d may not use this daemon: its configuration allows others only (users)", u.UID)
	}
	return nil
}
