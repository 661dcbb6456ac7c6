package switchagent

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
)

// bgpCollector collects the BGP sessions at each scrape.
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
		gauge(bgpUp, uint64(grpcserver.One(n.GetState() == bgp.Established)), n.GetSwitch())
		gauge(bgpPrefixes, n.GetReceived(), n.GetSwitch(), "received")
		gauge(bgpPrefixes, n.GetAccepted(), n.GetSwitch(), "accepted")
		gauge(bgpPrefixes, n.GetAdvertised(), n.GetSwitch(), "advertised")
	}
}

// portCollector collects the ports with a neighbor at each scrape.
type portCollector struct{ a *Agent }

var portUp = prometheus.NewDesc("mcrdma_agent_port_up", "1 if the link to the port's neighbor works.", []string{"port", "neighbor"}, nil)

// Describe implements prometheus.Collector.
func (portCollector) Describe(c chan<- *prometheus.Desc) { c <- portUp }

// Collect implements prometheus.Collector.
func (p portCollector) Collect(c chan<- prometheus.Metric) {
	d, _ := p.a.driver.current()
	for _, x := range p.a.portsStatus(p.a.ports.states(), d.phase != away) {
		if x.GetNeighbor() != "" && x.GetState() != "-" {
			c <- prometheus.MustNewConstMetric(portUp, prometheus.GaugeValue, float64(grpcserver.One(x.GetState() == "up")),
				strconv.FormatUint(uint64(x.GetPort()), 10), x.GetNeighbor())
		}
	}
}

// maxMeasured is the number of groups that have their own series, in order of their keys: each
// takes three reads of the switch, and has about 100 series with 16 receivers.
const maxMeasured = 64

// scrapeTime is how long a scrape may wait for the switch.
const scrapeTime = 2 * time.Second

// groupCollector collects the groups that are installed at this switch at each scrape.
type groupCollector struct{ a *Agent }

var (
	groupCount    = prometheus.NewDesc("mcrdma_agent_groups", "Groups that were installed at this switch.", nil, nil)
	stepCount     = prometheus.NewDesc("mcrdma_agent_steps", "Groups in which this switch takes part.", nil, nil)
	groupProblems = prometheus.NewDesc("mcrdma_agent_groups_with_problems", "Groups that were installed at this switch and are not as they should be.", nil, nil)

	groupPackets = prometheus.NewDesc("mcrdma_agent_group_packets_total", "Packets of the group's sender that were copied here.", []string{"group", "mc_id"}, nil)
	groupBytes   = prometheus.NewDesc("mcrdma_agent_group_bytes_total", "Bytes of the packets of the group's sender that were copied here.", []string{"group", "mc_id"}, nil)
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
	for _, d := range []*prometheus.Desc{groupCount, stepCount, groupProblems, groupPackets, groupBytes, groupAnswers, groupBehind, groupsUnmeasured} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (g groupCollector) Collect(c chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	gauge := func(d *prometheus.Desc, v int) {
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
	}
	u := g.a.table.Usage()
	gauge(groupCount, u.Groups)
	gauge(stepCount, u.Steps)
	gauge(groupProblems, u.GroupsWithProblems)
	list := g.a.table.Views(func(netip.Addr) bool { return true })
	left := len(list)
	var session *p4rt.Session
	var err error
	if left > 0 {
		session, err = g.a.driver.there(ctx)
	}
	for _, v := range list[:min(len(list), maxMeasured)] {
		s := g.a.describe(v)
		if err == nil && count(ctx, session, v, s, true) == nil { // otherwise mcrdma_agent_switch_connected shows it, or the group has ended
			collectGroup(c, s)
			left--
		}
	}
	gauge(groupsUnmeasured, left)
}

func collectGroup(c chan<- prometheus.Metric, s *mcrdmav1.GroupStatus) {
	// A re-formed group has the same name, and for a while both exist.
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
