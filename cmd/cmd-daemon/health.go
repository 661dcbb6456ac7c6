package main

import (
	"context"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mcrdma/mcrdma/internal/grpcserver"
)

// A healthServer serves /metrics, /healthz and /readyz.
type healthServer struct {
	ending atomic.Bool // groups are being closed
	close  func()
}

// serveHealth serves at an address, or not at all if it is empty; it passes later errors to fail.
func serveHealth(address string, metrics prometheus.Gatherer, readiness func() (bool, string), fail context.CancelCauseFunc) (h *healthServer, err error) {
	h = &healthServer{}
	h.close, err = grpcserver.ServeMetrics(address, metrics, func() (bool, string) {
		if h.ending.Load() {
			return false, "the daemon ends"
		}
		return readiness()
	}, fail)
	return h, err
}
