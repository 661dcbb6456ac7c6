package main

import (
	"context"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mcrdma/mcrdma/internal/grpcserver"
)

// A healthServer serves /metrics, /healthz and /readyz.
type healthServer struct {
	ready atomic.Bool
	close func()
}

// serveHealth serves at an address, or nowhere if it is empty; later errors are passed
// to fail.
func serveHealth(address string, metrics prometheus.Gatherer, fail context.CancelCauseFunc) (h *healthServer, err error) {
	h = &healthServer{}
	h.close, err = grpcserver.ServeMetrics(address, metrics, h.ready.Load, fail)
	return h, err
}

// set says whether the daemon serves applications.
func (h *healthServer) set(ready bool) { h.ready.Store(ready) }
