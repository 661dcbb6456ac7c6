package connmgr

import (
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
)

// metrics are the metrics for Prometheus. No group, host, PSN or QPN is a label.
type metrics struct {
	registry   *prometheus.Registry
	also       prometheus.Registerer
	server     *grpcserver.Metrics
	closed     prometheus.Counter
	peers      *prometheus.HistogramVec
	agent      *prometheus.HistogramVec
	formations *prometheus.CounterVec
	phases     *prometheus.HistogramVec
	removed    *prometheus.CounterVec
	beats      *prometheus.CounterVec
}

func newMetrics(m *Manager) (*metrics, error) {
	x := &metrics{registry: prometheus.NewRegistry(), also: m.opts.Metrics}
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("mcrdma_daemon_", x.registry))
	counter := func(name, help, label string) *prometheus.CounterVec {
		return auto.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	histogram := func(name, help, label string) *prometheus.HistogramVec {
		return auto.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: grpcserver.Buckets}, []string{label})
	}
	gauge := func(name, help string, f func() int) {
		auto.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(f()) })
	}
	x.server = grpcserver.NewMetrics(auto, "host", m.cfg.Name)
	x.closed = auto.NewCounter(prometheus.CounterOpts{Name: "connections_closed_total",
		Help: "Connections that were closed since a host, or a user of this one, had too many."})
	x.peers = histogram("host_call_seconds", "Time of calls to other daemons, beats apart.", "result")
	x.agent = histogram("agent_call_seconds", "Time of calls to the agent of the switch.", "result")
	x.formations = counter("formations_total", "Formations of groups that were made, by path.", "path")
	x.phases = histogram("formation_seconds", "Time to make a formation, by phase.", "phase")
	x.removed = counter("receivers_removed_total", "Receivers that were taken out of groups.", "reason")
	x.beats = counter("beats_total", "Beats to other daemons.", "result")
	gauge("groups", "Groups of which this host is the sender.", func() int {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.groups)
	})
	gauge("memberships", "Groups in which applications of this host receive.", func() int { return m.members.count(netip.Addr{}) })
	gauge("sessions", "Applications.", func() int { return len(m.sessions.all()) })
	gauge("switch_synced", "1 if the switch's agent is there and its events are followed.", func() int {
		if m.tor == nil {
			return 0
		}
		synced, _ := m.tor.State()
		return grpcserver.One(synced)
	})
	gauge("switch_ready", "1 if the switch's agent is there, has its switch, and takes new groups; else hosts relay them.", func() int {
		return grpcserver.One(m.tor != nil && m.tor.Unusable() == "")
	})
	gauge("state_failed", "1 if the state file could not be written: make room, and restart the daemon.", func() int {
		return grpcserver.One(m.store.Failed() != nil)
	})
	auto.NewGaugeFunc(prometheus.GaugeOpts{Name: "certificate_expiry_timestamp_seconds",
		Help: "Until when the certificate is valid, as it is on disk; 0: plain text, or it cannot be read."}, m.files.Expiry)
	if x.also != nil {
		if err := x.also.Register(x.registry); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// close also removes the metrics from the registry that they were added to.
func (x *metrics) close() {
	if x.also != nil {
		x.also.Unregister(x.registry)
	}
}

func (x *metrics) peerCall(took time.Duration, err error) {
	result := "ok"
	switch {
	case failure.Is(err, mcrdmav1.Reason_UNREACHABLE):
		result = "unreachable"
	case failure.Is(err, mcrdmav1.Reason_UNTRUSTED):
		result = "untrusted"
	case err != nil:
		result = "refused"
	}
	x.peers.WithLabelValues(result).Observe(took.Seconds())
}

func (x *metrics) agentCall(took time.Duration, err error) {
	result := "ok"
	switch {
	case err != nil && failure.Info(err) == nil:
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
	for _, s := range f.Phases {
		x.phases.WithLabelValues(s.Name).Observe(s.Took.Seconds())
	}
}
