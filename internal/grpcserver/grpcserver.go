// Package grpcserver is what the gRPC servers of daemons and agents have in common: limits,
// interceptors that bound the time of requests, count them and explain their errors,
// health, reflection; and the HTTP server of the metrics.
package grpcserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/grpcwindow"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// Config says how a server differs from others. All fields up to Explain are needed.
type Config struct {
	Log        *slog.Logger
	Metrics    *Metrics
	Health     *health.Server
	MaxMessage int           // bytes
	MinPing    time.Duration // the shortest time between a client's keepalive pings
	Time       time.Duration // of a request without a deadline
	// Explain makes the error of a handler one that has a status.
	Explain func(error) error
	// Client names the client at the other end of a connection, by the context of its calls. A client may have PerClient
	// connections. One more closes its oldest, so that stale ones do not keep it out; Closed, if not nil, is called then.
	// nil: clients are not known, and all are let in.
	Client    func(context.Context) (string, error)
	PerClient int
	Closed    func()
	// Unary and Stream are further interceptors; their errors are explained too.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor
}

// New makes a server with those credentials, to which the caller adds its services. Its
// Stop waits for handlers. A handler that panics ends the process: nothing else could
// repair what it had locked or changed in part, while what is durable is right.
func New(c Config, creds credentials.TransportCredentials, more ...grpc.ServerOption) *grpc.Server {
	creds = identity.Watched(&perClient{TransportCredentials: creds, cfg: c, conns: map[string][]net.Conn{}}, c.refusals())
	s := grpc.NewServer(append(append(grpcwindow.Serve(),
		grpc.Creds(creds), grpc.ConnectionTimeout(connectTime), grpc.MaxRecvMsgSize(c.MaxMessage), grpc.MaxSendMsgSize(c.MaxMessage), grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: c.MinPing, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(append([]grpc.UnaryServerInterceptor{c.unary}, c.Unary...)...),
		grpc.ChainStreamInterceptor(append([]grpc.StreamServerInterceptor{c.stream}, c.Stream...)...),
	), more...)...)
	healthpb.RegisterHealthServer(s, c.Health)
	reflection.Register(s)
	return s
}

// refusals counts connections that were refused. It logs the first ones, and then one each ten seconds: a
// host that tries again and again does not fill the log.
func (c Config) refusals() func(error) {
	some := rate.Sometimes{First: 100, Interval: 10 * time.Second}
	return func(err error) {
		c.Metrics.handshakes.Inc()
		some.Do(func() { c.Log.Warn("a connection was refused", "error", err) })
	}
}

func (c Config) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Time)
		defer cancel()
	}
	begun := time.Now()
	res, err := handle(ctx, req)
	c.Metrics.latency.WithLabelValues(info.FullMethod).Observe(time.Since(begun).Seconds())
	return res, c.finish(info.FullMethod, err)
}

func (c Config) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return c.finish(info.FullMethod, handle(srv, s))
}

// finish explains the error of a request, and counts it.
func (c Config) finish(method string, err error) error {
	if err != nil {
		err = c.Explain(err)
	}
	c.Metrics.requests.WithLabelValues(method, status.Code(err).String()).Inc()
	if info := failure.Info(err); info != nil && info.GetMetadata()[c.Metrics.kind] == c.Metrics.name {
		c.Metrics.refused.WithLabelValues(info.GetReason()).Inc()
	}
	return err
}

// Metrics are those of servers.
type Metrics struct {
	kind, name string // who counts refusals, as an ErrorInfo names it
	requests   *prometheus.CounterVec
	refused    *prometheus.CounterVec
	handshakes prometheus.Counter
	latency    *prometheus.HistogramVec
}

// Buckets are those of times of requests.
var Buckets = prometheus.ExponentialBuckets(0.0005, 2, 14)

// NewMetrics makes the metrics of the servers of a host or a switch (kind).
func NewMetrics(auto promauto.Factory, kind, name string) *Metrics {
	return &Metrics{kind: kind, name: name,
		requests: auto.NewCounterVec(prometheus.CounterOpts{Name: "requests_total",
			Help: "Requests by method and gRPC code."}, []string{"method", "code"}),
		refused: auto.NewCounterVec(prometheus.CounterOpts{Name: "refused_total",
			Help: "Requests that were refused here, by reason."}, []string{"reason"}),
		handshakes: auto.NewCounter(prometheus.CounterOpts{Name: "handshakes_failed_total",
			Help: "Connections of others that failed before a request, for want of a certificate that is good."}),
		latency: auto.NewHistogramVec(prometheus.HistogramOpts{Name: "request_seconds",
			Help: "Time of requests.", Buckets: Buckets}, []string{"method"}),
	}
}

// One is the value of a gauge that says whether something is so.
func One(so bool) int {
	if so {
		return 1
	}
	return 0
}

// CannotListen is the error of listening at an address, with what to do; field is where the
// address is configured.
func CannotListen(field, addr string, err error) error {
	do := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		do = fmt.Sprintf(": another program listens there (ss -ltnp says which); end it, or choose another address for %s", field)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		do = fmt.Sprintf(": it is not an address of this host (ip -4 address shows them); correct %s, or give the address to an interface", field)
	case errors.Is(err, syscall.EACCES):
		do = ": ports below 1024 need CAP_NET_BIND_SERVICE"
	}
	return fmt.Errorf("%s %s%s: %w", field, addr, do, err)
}

// A host that can reach the metrics must not be able to use up processors, memory and file descriptors.
const (
	maxScrapes = 4                // at the same time; others get 503
	scrapeTime = 10 * time.Second // to send a request, and to read the answer
)

// ServeMetrics serves /metrics, /healthz, and /readyz, which answers 503 while ready says
// no, at an address ("": it does nothing) until stop is called, or fails. Either answer of /readyz
// has the note, if it is not empty.
func ServeMetrics(addr string, g prometheus.Gatherer, ready func() (ok bool, note string), fail func(error)) (stop func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, CannotListen("metrics", addr, err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		ok, note := ready()
		if note != "" {
			note = ": " + note
		}
		if !ok {
			http.Error(w, "not ready"+note, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready"+note)
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: scrapeTime, ReadTimeout: scrapeTime, WriteTimeout: scrapeTime, IdleTimeout: 2 * time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("serving metrics: %w", err))
		}
	}()
	return func() { _ = s.Close(); <-done }, nil
}
