package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/mcrdma/mcrdma/internal/grpcserver"
)

// A healthServer serves /metrics, /healthz and /readyz.
type healthServer struct {
	ready    atomic.Bool
	server   *http.Server // nil: there is no health address
	listener net.Listener
	done     chan struct{}
}

// serveHealth serves at an address, or nowhere if it is empty; later errors are passed
// to fail.
func serveHealth(address string, metrics prometheus.Gatherer, fail context.CancelCauseFunc) (*healthServer, error) {
	h := &healthServer{done: make(chan struct{})}
	if address == "" {
		close(h.done)
		return h, nil
	}
	var err error
	if h.listener, err = net.Listen("tcp", address); err != nil {
		return nil, grpcserver.CannotListen("metrics", address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !h.ready.Load() {
			http.Error(w, "not ready: starting or ending", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	h.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(h.done)
		if err := h.server.Serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("serving metrics: %w", err))
		}
	}()
	return h, nil
}

// set says whether the daemon serves applications.
func (h *healthServer) set(ready bool) { h.ready.Store(ready) }

func (h *healthServer) close() {
	if h.server != nil {
		_ = h.server.Close()
	}
	<-h.done
}
