package switchagent

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
)

// metrics are exported to Prometheus. Labels are bounded: by the configuration (ports, neighbors),
// and to the first maxMeasured groups. No PSN or QPN is a label.
type metrics struct {
	registry    *prometheus.Registry
	server      *grpcserver.Metrics
	peers       *prometheus.HistogramVec
	drops       *prometheus.CounterVec
	linkChanges *prometheus.CounterVec
	remakes     prometheus.Counter
	rerunTime   prometheus.Histogram
}

func newMetrics(a *Agent) *metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(bgpCollector{a}, portCollector{a}, groupCollector{a})
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("mcrdma_agent_", registry))
	gauge := func(name, help string, f func() int) {
		auto.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(f()) })
	}
	gauge("switch_connected", "1 if the switch is connected and this agent controls it.", func() int {
		s, _ := a.driver.current()
		return grpcserver.One(s.phase == serving)
	})
	gauge("state_failed", "1 if the state file could not be written: make room, and restart the agent.", func() int {
		return grpcserver.One(a.store.Failed() != nil)
	})
	auto.NewGaugeFunc(prometheus.GaugeOpts{Name: "certificate_expiry_timestamp_seconds",
		Help: "Until when the certificate is valid, as it is on disk; 0: plain text, or it cannot be read."}, a.files().Expiry)
	m := &metrics{registry: registry, server: grpcserver.NewMetrics(auto, "switch", string(a.name)),
		peers: auto.NewHistogramVec(prometheus.HistogramOpts{Name: "peer_call_seconds",
			Help: "Time of calls to other switches' agents.", Buckets: grpcserver.Buckets}, []string{"result"}),
		drops: auto.NewCounterVec(prometheus.CounterOpts{Name: "frames_dropped_total",
			Help: "Frames from and to the switch that were of no use."}, []string{"reason"}),
		linkChanges: auto.NewCounterVec(prometheus.CounterOpts{Name: "link_changes_total",
			Help: "How often the link to the port's neighbor came up or went down."}, []string{"port", "neighbor"}),
		remakes: auto.NewCounter(prometheus.CounterOpts{Name: "steps_remade_total",
			Help: "Steps of groups that were made again, because routes changed."}),
		rerunTime: auto.NewHistogram(prometheus.HistogramOpts{Name: "follow_seconds",
			Help: "Time to make the switch and the groups follow changed routes.", Buckets: grpcserver.Buckets}),
	}
	for _, p := range a.cfg.Ports { // a counter that first appears with a value shows no increase
		if p.To != "" {
			m.linkChanges.WithLabelValues(strconv.Itoa(int(p.Port)), p.To)
		}
	}
	return m
}

func (m *metrics) dropped(reason string) { m.drops.WithLabelValues(reason).Inc() }

func (m *metrics) peerCall(d time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "refused"
	}
	if isUnreachable(err) {
		result = "unreachable"
	}
	m.peers.WithLabelValues(result).Observe(d.Seconds())
}

// isUnreachable reports that another agent did not answer, as opposed to refused.
func isUnreachable(err error) bool {
	return err != nil && errors.Is(err, ErrPeer) && !errors.As(err, new(*failure.Error))
}
