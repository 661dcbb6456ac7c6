package switchagent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
)

// metrics are exported to Prometheus. Labels are bounded: by what is configured (ports,
// neighbors), and of groups the first maxMeasured are told. No PSN or QPN is a label.
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
		auto.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			a.mu.Lock()
			defer a.mu.Unlock()
			return float64(f())
		})
	}
	gauge("groups", "Groups that were installed at this switch.", func() int { return len(a.groups) })
	gauge("steps", "Groups in which this switch takes part.", func() int { return len(a.steps) })
	gauge("groups_with_problems", "Groups that were installed at this switch and are not as they should be.", func() (n int) {
		for _, g := range a.groups {
			if g.step != nil && len(g.step.problems) > 0 {
				n++
			}
		}
		return n
	})
	gauge("switch_connected", "1 if the switch is connected and this agent controls it.", func() int {
		s, _ := a.driver.current()
		return grpcserver.One(s.primary)
	})
	gauge("state_failed", "1 if the state file could not be written: make room, and restart the agent.", func() int {
		return grpcserver.One(a.store.Failed() != nil)
	})
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
	for _, p := range a.cfg.Ports { // a counter that begins with its first count shows no increase
		if p.To != "" {
			m.linkChanges.WithLabelValues(strconv.Itoa(int(p.Port)), p.To)
		}
	}
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

// maxMeasured is how many groups have series of their own, in order of their keys: each
// takes three reads of the switch, and has some 100 series with 16 receivers.
const maxMeasured = 64

// scrapeTime is how long a scrape may wait for the switch.
const scrapeTime = 2 * time.Second

// groupCollector has the groups that were installed at this switch as they are when
// Prometheus asks.
type groupCollector struct{ a *Agent }

var (
	groupPackets = prometheus.NewDesc("mcrdma_agent_group_packets_total", "Packets of the group's sender that were copied here.", []string{"group", "mc_id"}, nil)
	groupBytes   = prometheus.NewDesc("mcrdma_agent_group_bytes_total", "Bytes of those packets.", []string{"group", "mc_id"}, nil)
	groupAnswers = prometheus.NewDesc("mcrdma_agent_group_answers_total", "Answers of the group's receiver before merging, by kind.",
		[]string{"group", "mc_id", "receiver", "kind"}, nil)
	groupBehind = prometheus.NewDesc("mcrdma_agent_group_behind_packets",
		"How many packets the receiver's last acknowledgement is behind that of the group's first; none if the switch does not tell (bmv2).",
		[]string{"group", "mc_id", "receiver"}, nil)
	groupsUnmeasured = prometheus.NewDesc("mcrdma_agent_groups_unmeasured",
		"Groups without series of their own: beyond the first 64, or not read in time.", nil, nil)
)

// Describe implements prometheus.Collector.
func (groupCollector) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{groupPackets, groupBytes, groupAnswers, groupBehind, groupsUnmeasured} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (g groupCollector) Collect(c chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	list := g.a.listed(func(netip.Addr) bool { return true })
	left := len(list)
	for _, x := range list[:min(len(list), maxMeasured)] {
		s := g.a.describe(x)
		if g.a.count(ctx, x, s, true) == nil { // else mcrdma_agent_switch_connected tells, or the group has ended
			collectGroup(c, s)
			left--
		}
	}
	c <- prometheus.MustNewConstMetric(groupsUnmeasured, prometheus.GaugeValue, float64(left))
}

func collectGroup(c chan<- prometheus.Metric, s *mcrdmav1.GroupStatus) {
	// A group that is formed anew has the same name, and for a while there are both.
	name, id := grouptree.KeyOf(s.GetGroup().GetKey()), fmt.Sprintf("%#x", s.GetGroup().GetKey().GetMcId())
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{name, id}, labels...)...)
	}
	count(groupPackets, s.GetPackets())
	count(groupBytes, s.GetBytes())
	for i, m := range s.GetMembers() {
		receiver := s.GetGroup().GetReceivers()[i].GetAddress()
		count(groupAnswers, m.GetAcks(), receiver, "ack")
		count(groupAnswers, m.GetSequenceNaks(), receiver, "sequence_nak")
		count(groupAnswers, m.GetRnrNaks(), receiver, "rnr_nak")
		count(groupAnswers, m.GetFatalNaks(), receiver, "fatal_nak")
		count(groupAnswers, m.GetCnps(), receiver, "cnp")
		if m.BehindPackets != nil {
			c <- prometheus.MustNewConstMetric(groupBehind, prometheus.GaugeValue, float64(m.GetBehindPackets()), name, id, receiver)
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
