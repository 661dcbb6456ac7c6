package switchagent

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
)

// metrics are exported to Prometheus. No group, PSN or QPN is a label.
type metrics struct {
	registry    *prometheus.Registry
	server      *grpcserver.Metrics
	peers       *prometheus.HistogramVec
	drops       *prometheus.CounterVec
	linkChanges prometheus.Counter
	remakes     prometheus.Counter
	rerunTime   prometheus.Histogram
}

func newMetrics(a *Agent) *metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(bgpCollector{a}, portCollector{a})
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("mcrdma_agent_", registry))
	gauge := func(name, help string, f func() int) {
		auto.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			a.mu.Lock()
			defer a.mu.Unlock()
			return float64(f())
		})
	}
	gauge("groups", "Groups that were installed at this switch.", func() int { return len(a.groups) })
	gauge("steps", "Groups in which this switch takes part.", func() int { return len(a.steps) })
	gauge("switch_connected", "1 if the switch is connected and this agent controls it.", func() int {
		s, _ := a.driver.current()
		return grpcserver.One(s.primary)
	})
	gauge("state_failed", "1 if the state file could not be written: make room, and restart the agent.", func() int {
		return grpcserver.One(a.store.Failed() != nil)
	})
	return &metrics{registry: registry, server: grpcserver.NewMetrics(auto, "switch", string(a.name)),
		peers: auto.NewHistogramVec(prometheus.HistogramOpts{Name: "peer_call_seconds",
			Help: "Time of calls to other switches' agents.", Buckets: grpcserver.Buckets}, []string{"result"}),
		drops: auto.NewCounterVec(prometheus.CounterOpts{Name: "frames_dropped_total",
			Help: "Frames from and to the switch that were of no use."}, []string{"reason"}),
		linkChanges: auto.NewCounter(prometheus.CounterOpts{Name: "link_changes_total", Help: "Links that came up or went down."}),
		remakes: auto.NewCounter(prometheus.CounterOpts{Name: "steps_remade_total",
			Help: "Steps of groups that were made again, because routes changed."}),
		rerunTime: auto.NewHistogram(prometheus.HistogramOpts{Name: "follow_seconds",
			Help: "Time to make the switch and the groups follow changed routes.", Buckets: grpcserver.Buckets}),
	}
}

// bgpCollector has the BGP sessions as they are when Prometheus asks.
type bgpCollector struct{ a *Agent }

var (
	bgpUp       = prometheus.NewDesc("mcrdma_agent_bgp_established", "1 if the BGP session with the switch is established.", []string{"switch"}, nil)
	bgpPrefixes = prometheus.NewDesc("mcrdma_agent_bgp_prefixes", "Prefixes received from the switch, of those accepted, and advertised to it.",
		[]string{"switch", "which"}, nil)
)

// Describe implements prometheus.Collector.
func (bgpCollector) Describe(c chan<- *prometheus.Desc) { c <- bgpUp; c <- bgpPrefixes }

// Collect implements prometheus.Collector.
func (b bgpCollector) Collect(c chan<- prometheus.Metric) {
	list, err := b.a.bgpStatus(context.Background())
	if err != nil {
		c <- prometheus.NewInvalidMetric(bgpUp, err)
	}
	gauge := func(d *prometheus.Desc, v uint64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	for _, n := range list {
		up := uint64(0)
		if n.GetState() == bgp.Established {
			up = 1
		}
		gauge(bgpUp, up, n.GetSwitch())
		gauge(bgpPrefixes, n.GetReceived(), n.GetSwitch(), "received")
		gauge(bgpPrefixes, n.GetAccepted(), n.GetSwitch(), "accepted")
		gauge(bgpPrefixes, n.GetAdvertised(), n.GetSwitch(), "advertised")
	}
}

// portCollector has the ports with a neighbor as they are when Prometheus asks.
type portCollector struct{ a *Agent }

var portUp = prometheus.NewDesc("mcrdma_agent_port_up", "1 if the link to the port's neighbor works.", []string{"port", "neighbor"}, nil)

// Describe implements prometheus.Collector.
func (portCollector) Describe(c chan<- *prometheus.Desc) { c <- portUp }

// Collect implements prometheus.Collector.
func (p portCollector) Collect(c chan<- prometheus.Metric) {
	for _, x := range p.a.portStatus() {
		if x.GetNeighbor() != "" && x.GetState() != "-" {
			c <- prometheus.MustNewConstMetric(portUp, prometheus.GaugeValue, float64(grpcserver.One(x.GetState() == "up")),
				strconv.FormatUint(uint64(x.GetPort()), 10), x.GetNeighbor())
		}
	}
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

// isUnreachable says that another agent did not answer, rather than refused.
func isUnreachable(err error) bool {
	return err != nil && errors.Is(err, ErrPeer) && !errors.As(err, new(*failure.Error))
}
