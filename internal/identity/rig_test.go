package identity_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A server answers health checks of those whom FromContext knows.
type server struct {
	grpc_health_v1.UnimplementedHealthServer
	addr      string
	last      atomic.Pointer[identity.Identity]
	certified atomic.Value // the last result of Certified
}

func (s *server) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	name, err := identity.Certified(ctx)
	s.certified.Store(fmt.Sprintf("%s, %v", name, err))
	id, err := identity.FromContext(ctx)
	if err != nil {
		return nil, err
	}
	s.last.Store(&id)
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func serve(t testing.TB, o ...grpc.ServerOption) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: l.Addr().String()}
	g := grpc.NewServer(o...)
	grpc_health_v1.RegisterHealthServer(g, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-done })
	return s
}

func serveFiles(t testing.TB, f identity.Files) *server {
	t.Helper()
	c, err := f.Server()
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, grpc.Creds(c))
}

func dial(t testing.TB, s *server, c credentials.TransportCredentials, o ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(s.addr, append(o, grpc.WithTransportCredentials(c))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// who asks the server whom it takes the caller for.
func who(t testing.TB, s *server, conn *grpc.ClientConn, o ...grpc.CallOption) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, o...); err != nil {
		return "", err
	}
	return s.last.Load().String(), nil
}

// call is who, on a connection of its own.
func call(t testing.TB, s *server, f identity.Files, expect identity.Identity, o ...grpc.DialOption) (string, error) {
	t.Helper()
	c, err := f.Client(expect)
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, s, c, o...)
	defer conn.Close()
	return who(t, s, conn)
}

// raw are credentials that are not this package's, with a certificate and no
// questions.
func raw(t testing.TB, f identity.Files, edit ...func(*tls.Config)) credentials.TransportCredentials {
	t.Helper()
	cfg := &tls.Config{InsecureSkipVerify: true}
	if !f.Plain() {
		cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	for _, e := range edit {
		e(cfg)
	}
	return credentials.NewTLS(cfg)
}

// says checks an error of a call: its code, and that each of the texts is in it.
func says(t *testing.T, err error, want string, texts ...string) {
	t.Helper()
	if status.Code(err).String() != want {
		t.Errorf("not %s: %v", want, err)
	}
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("no word of %q: %v", text, err)
		}
	}
}

func expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }

func early(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }

func usage(u x509.ExtKeyUsage) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{u} }
}

func sw(name string) identity.Identity {
	return identity.Identity{Role: identity.Switch, Name: name}
}

func host(name string, addrs ...string) identity.Identity {
	id := identity.Identity{Role: identity.Host, Name: name}
	for _, a := range addrs {
		id.Addrs = append(id.Addrs, netip.MustParseAddr(a))
	}
	return id
}
