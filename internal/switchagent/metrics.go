package switchagent

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/routing/bgp"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// metrics are exported to Prometheus. No group, PSN or QPN is a label.
type metrics struct {
	registry    *prometheus.Registry
	requests    *prometheus.CounterVec
	refused     *prometheus.CounterVec
	handshakes  prometheus.Counter
	latency     *prometheus.HistogramVec
	peers       *prometheus.HistogramVec
	drops       *prometheus.CounterVec
	linkChanges prometheus.Counter
	remakes     prometheus.Counter
	rerunTime   prometheus.Histogram
}

func newMetrics(a *Agent) *metrics {
	buckets := prometheus.ExponentialBuckets(0.0005, 2, 14)
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mcrdma_agent_requests_total",
			Help: "Requests by method and gRPC code."}, []string{"method", "code"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mcrdma_agent_refused_total",
			Help: "Requests that this agent refused, by reason."}, []string{"reason"}),
		handshakes: prometheus.NewCounter(prometheus.CounterOpts{Name: "mcrdma_agent_handshakes_failed_total",
			Help: "Connections of others that failed before a request, for want of a certificate that is good."}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "mcrdma_agent_request_seconds",
			Help: "Time of requests.", Buckets: buckets}, []string{"method"}),
		peers: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "mcrdma_agent_peer_call_seconds",
			Help: "Time of calls to other switches' agents.", Buckets: buckets}, []string{"result"}),
		drops: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mcrdma_agent_frames_dropped_total",
			Help: "Frames from and to the switch that were of no use."}, []string{"reason"}),
		linkChanges: prometheus.NewCounter(prometheus.CounterOpts{Name: "mcrdma_agent_link_changes_total",
			Help: "Links that came up or went down."}),
		remakes: prometheus.NewCounter(prometheus.CounterOpts{Name: "mcrdma_agent_steps_remade_total",
			Help: "Steps of groups that were made again, because routes changed."}),
		rerunTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "mcrdma_agent_follow_seconds",
			Help: "Time to make the switch and the groups follow changed routes.", Buckets: buckets}),
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	count := func(f func() int) func() float64 {
		return func() float64 {
			a.mu.Lock()
			defer a.mu.Unlock()
			return float64(f())
		}
	}
	m.registry.MustRegister(m.requests, m.refused, m.handshakes, m.latency, m.peers, m.drops, m.linkChanges, m.remakes, m.rerunTime,
		gauge("mcrdma_agent_groups", "Groups that were installed at this switch.", count(func() int { return len(a.groups) })),
		gauge("mcrdma_agent_steps", "Groups in which this switch takes part.", count(func() int { return len(a.steps) })),
		gauge("mcrdma_agent_switch_connected", "1 if the switch is connected and this agent controls it.", func() float64 {
			if s, _ := a.driver.current(); s.primary {
				return 1
			}
			return 0
		}),
		gauge("mcrdma_agent_state_failed", "1 if the state file could not be written: make room, and restart the agent.", func() float64 {
			if a.store.Failed() != nil {
				return 1
			}
			return 0
		}),
	)
	m.registry.MustRegister(bgpCollector{a})
	return m
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

// request counts a finished request. The agent that refused it counts the refusal.
func (m *metrics) request(name bifurcation.Switch, method string, err error) {
	s := status.Convert(err)
	m.requests.WithLabelValues(method, s.Code().String()).Inc()
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain && info.GetMetadata()["switch"] == string(name) {
			m.refused.WithLabelValues(info.GetReason()).Inc()
		}
	}
}

// isUnreachable says that another agent did not answer, rather than refused.
func isUnreachable(err error) bool {
	return err != nil && errors.Is(err, ErrPeer) && !errors.As(err, new(*remoteError))
}
