package grpcserver

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// TestServer: requests get a deadline, their errors are explained, and all of it is
// counted; a refusal is counted by who refused.
func TestServer(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(promauto.With(registry), "host", "h1")
	var given atomic.Int64 // the time that the handler had
	var at string
	bad := errors.New("bad")
	creds, err := identity.Files{}.Server()
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Log: slog.New(slog.DiscardHandler), Metrics: m, Health: health.NewServer(), MaxMessage: 1 << 20, MinPing: time.Second,
		Time: time.Minute, Explain: func(err error) error {
			if errors.Is(err, bad) {
				return &failure.Error{Reason: mcrdmav1.Reason_LIMIT, Host: at, Text: "full"}
			}
			return err
		}, Unary: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			end, _ := ctx.Deadline()
			given.Store(int64(time.Until(end)))
			if at != "" {
				return nil, bad
			}
			return handle(ctx, req)
		}}, Stream: []grpc.StreamServerInterceptor{func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error { return bad }},
	}, creds)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := s.Serve(l); err != nil {
			t.Error(err)
		}
	}()
	defer func() { s.Stop(); <-served }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	c := healthpb.NewHealthClient(conn)
	for _, tt := range []struct {
		at     string
		within time.Duration
		code   codes.Code
	}{{"", 0, codes.OK}, {"h1", 0, codes.ResourceExhausted}, {"h2", 0, codes.ResourceExhausted}, {"", 5 * time.Second, codes.OK}} {
		at = tt.at
		ctx, most := t.Context(), time.Minute
		if tt.within > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, tt.within)
			defer cancel()
			most = tt.within
		}
		_, err := c.Check(ctx, &healthpb.HealthCheckRequest{})
		if status.Code(err) != tt.code {
			t.Errorf("%v", err)
		}
		if d := time.Duration(given.Load()); d > most || d < most/2 {
			t.Errorf("the handler had %v", d)
		}
	}
	at = "h1"
	w, err := c.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = w.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a stream: %v", err)
	}
	got := map[string]int{}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = int(m.GetCounter().GetValue()) + int(m.GetHistogram().GetSampleCount())
		}
	}
	want := map[string]int{"handshakes_failed_total": 0, "refused_total LIMIT": 2, // by h1
		"request_seconds " + healthpb.Health_Check_FullMethodName:                  4,
		"requests_total OK " + healthpb.Health_Check_FullMethodName:                2,
		"requests_total ResourceExhausted " + healthpb.Health_Check_FullMethodName: 2,
		"requests_total ResourceExhausted " + healthpb.Health_Watch_FullMethodName: 1}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestServeMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	promauto.With(registry).NewCounter(prometheus.CounterOpts{Name: "things_total"})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	fail := func(err error) { t.Errorf("it failed: %v", err) }
	var is atomic.Bool
	ready := func() (bool, string) { return is.Load(), map[bool]string{false: "it starts"}[is.Load()] }
	if _, err := ServeMetrics(addr, registry, ready, fail); err == nil {
		t.Error("two servers at one address")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	stop, err := ServeMetrics(addr, registry, ready, fail)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	}
	res, err := get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	if _ = res.Body.Close(); err != nil || !strings.Contains(string(text), "things_total 0") {
		t.Errorf("%s, %v", text, err)
	}
	for _, c := range []struct {
		path  string
		ready bool
		want  int
		body  string
	}{{"/healthz", false, 200, "ok\n"}, {"/readyz", false, 503, "not ready: it starts\n"}, {"/readyz", true, 200, "ready\n"}} {
		is.Store(c.ready)
		res, err := get(c.path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if _ = res.Body.Close(); res.StatusCode != c.want || string(body) != c.body {
			t.Errorf("%s: %d %q, %v, want %d %q", c.path, res.StatusCode, body, err, c.want, c.body)
		}
	}
	stop()
	if res, err := get("/metrics"); err == nil {
		_ = res.Body.Close()
		t.Error("it still serves")
	}
	none, err := ServeMetrics("", registry, ready, fail)
	if err != nil {
		t.Fatal(err)
	}
	none()
}

// TestScrapes: only a few requests for metrics are served at the same time.
func TestScrapes(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	release := make(chan struct{})
	registry := prometheus.NewRegistry()
	promauto.With(registry).NewGaugeFunc(prometheus.GaugeOpts{Name: "things"}, func() float64 { <-release; return 0 })
	stop, err := ServeMetrics(addr, registry, func() (bool, string) { return true, "" }, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	codes := make(chan int)
	for range maxScrapes + 1 {
		go func() {
			code := 0
			if req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/metrics", nil); err == nil {
				if res, err := http.DefaultClient.Do(req); err == nil {
					code = res.StatusCode
					_ = res.Body.Close()
				}
			}
			codes <- code
		}()
	}
	if got := <-codes; got != http.StatusServiceUnavailable {
		t.Errorf("one too many: %d", got)
	}
	close(release)
	for range maxScrapes {
		if got := <-codes; got != http.StatusOK {
			t.Errorf("%d", got)
		}
	}
}

// TestRefusals: a host that is refused again and again does not fill the log.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		refused := Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: NewMetrics(promauto.With(prometheus.NewRegistry()), "host", "h1")}.refusals()
		for range 20 * 60 {
			refused(errors.New("no certificate"))
			time.Sleep(50 * time.Millisecond)
		}
		if n := strings.Count(log.String(), "no certificate"); n < 100 || n > 106 {
			t.Errorf("%d lines for 1200 connections within a minute", n)
		}
	})
}
