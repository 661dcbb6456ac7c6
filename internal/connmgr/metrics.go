package connmgr

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// metrics are the metrics for Prometheus. No group, host, PSN or QPN is a label.
type metrics struct {
	host       string
	registry   *prometheus.Registry
	also       prometheus.Registerer
	all        []prometheus.Collector
	requests   *prometheus.CounterVec
	refused    *prometheus.CounterVec
	handshakes prometheus.Counter
	closed     prometheus.Counter
	latency    *prometheus.HistogramVec
	peers      *prometheus.HistogramVec
	agent      *prometheus.HistogramVec
	formations *prometheus.CounterVec
	steps      *prometheus.HistogramVec
	removed    *prometheus.CounterVec
	beats      *prometheus.CounterVec
}

func newMetrics(m *Manager) (*metrics, error) {
	buckets := prometheus.ExponentialBuckets(0.0005, 2, 14)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mcrdma_daemon_" + name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "mcrdma_daemon_" + name, Help: help, Buckets: buckets}, labels)
	}
	gauge := func(name, help string, f func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mcrdma_daemon_" + name, Help: help}, func() float64 {
			m.mu.Lock()
			defer m.mu.Unlock()
			return float64(f())
		})
	}
	x := &metrics{host: m.name, registry: prometheus.NewRegistry(), also: m.opts.Metrics,
		requests: counter("requests_total", "Requests by method and gRPC code.", "method", "code"),
		refused:  counter("refused_total", "Requests that this daemon refused, or its applications, by reason.", "reason"),
		handshakes: prometheus.NewCounter(prometheus.CounterOpts{Name: "mcrdma_daemon_handshakes_failed_total",
			Help: "Connections of others that failed before a request, for want of a certificate that is good."}),
		closed: prometheus.NewCounter(prometheus.CounterOpts{Name: "mcrdma_daemon_connections_closed_total",
			Help: "Connections of other hosts that were closed since a host had too many."}),
		latency:    histogram("request_seconds", "Time of requests.", "method"),
		peers:      histogram("host_call_seconds", "Time of calls to other daemons, beats apart.", "result"),
		agent:      histogram("agent_call_seconds", "Time of calls to the agent of the switch.", "result"),
		formations: counter("formations_total", "Formations of groups that were made, by path.", "path"),
		steps:      histogram("formation_seconds", "Time to make a formation, by step.", "step"),
		removed:    counter("receivers_removed_total", "Receivers that were taken out of groups.", "reason"),
		beats:      counter("beats_total", "Beats to other daemons.", "result"),
	}
	x.all = []prometheus.Collector{x.requests, x.refused, x.handshakes, x.closed, x.latency, x.peers, x.agent, x.formations, x.steps, x.removed, x.beats,
		gauge("groups", "Groups of which this host is the sender.", func() int { return len(m.groups) }),
		gauge("memberships", "Groups in which applications of this host receive.", func() int { return len(m.memberships) }),
		gauge("sessions", "Applications.", func() int { return len(m.sessions) }),
		gauge("switch_synced", "1 if the switch's agent is there and its events are followed.", func() int {
			if m.tor != nil && m.tor.synced {
				return 1
			}
			return 0
		}),
		gauge("state_failed", "1 if the state file could not be written: make room, and restart the daemon.", func() int {
			if m.store.Failed() != nil {
				return 1
			}
			return 0
		}),
	}
	for _, c := range x.all {
		x.registry.MustRegister(c)
		if x.also == nil {
			continue
		}
		if err := x.also.Register(c); err != nil {
			x.close()
			return nil, err
		}
	}
	return x, nil
}

// close also removes the metrics from the registry that they were added to.
func (x *metrics) close() {
	if x.also == nil {
		return
	}
	for _, c := range x.all {
		x.also.Unregister(c)
	}
}

func (x *metrics) request(method string, took time.Duration, err error) {
	x.requests.WithLabelValues(method, status.Code(err).String()).Inc()
	if info := infoOf(status.Convert(err)); info != nil && info.GetMetadata()["host"] == x.host {
		x.refused.WithLabelValues(info.GetReason()).Inc()
	}
	x.latency.WithLabelValues(method).Observe(took.Seconds())
}

func (x *metrics) peerCall(took time.Duration, err error) {
	result := "ok"
	switch {
	case errors.Is(err, Unreachable):
		result = "unreachable"
	case errors.Is(err, Untrusted):
		result = "untrusted"
	case err != nil:
		result = "refused"
	}
	x.peers.WithLabelValues(result).Observe(took.Seconds())
}

func (x *metrics) agentCall(took time.Duration, err error) {
	result := "ok"
	switch {
	case err != nil && infoOf(status.Convert(err)) == nil:
		result = "unreachable"
	case err != nil:
		result = "refused"
	}
	x.agent.WithLabelValues(result).Observe(took.Seconds())
}

func (x *metrics) formation(f *formation) {
	path := "switch"
	if f.Path == mcrdmav1.Path_PATH_RELAY {
		path = "relay"
	}
	x.formations.WithLabelValues(path).Inc()
	for _, s := range f.steps {
		x.steps.WithLabelValues(s.name).Observe(s.took.Seconds())
	}
}
