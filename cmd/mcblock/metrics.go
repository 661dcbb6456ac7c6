package main

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/nbd"
	"github.com/mcrdma/mcrdma/pkg/replica"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// metricsPrefix is the prefix of all metrics of a host's mcblock.
const metricsPrefix = "mcrdma_block_"

// requestBuckets are the buckets of request times at NBD: a write takes the fabric's round trip, a
// flush the disks'.
var requestBuckets = prometheus.ExponentialBuckets(0.0001, 2, 16)

// traffic counts the requests of clients of this host, by volume.
type traffic struct {
	seconds *prometheus.HistogramVec
	bytes   *prometheus.CounterVec
	failed  *prometheus.CounterVec
	denied  prometheus.Counter
}

func newTraffic(auto promauto.Factory) *traffic {
	return &traffic{
		seconds: auto.NewHistogramVec(prometheus.HistogramOpts{Name: "volume_request_seconds", Buckets: requestBuckets,
			Help: "Time of requests of this host's NBD clients, by operation. A write of more than 1 MiB is several."}, []string{"volume", "operation"}),
		bytes: auto.NewCounterVec(prometheus.CounterOpts{Name: "volume_bytes_total",
			Help: "Bytes that this host's NBD clients have read and written."}, []string{"volume", "operation"}),
		failed: auto.NewCounterVec(prometheus.CounterOpts{Name: "volume_errors_total",
			Help: "Requests of this host's NBD clients that failed."}, []string{"volume", "operation"}),
		denied: auto.NewCounter(prometheus.CounterOpts{Name: "volume_denied_total",
			Help: "Clients that wanted a volume that is not for them."}),
	}
}

// forget removes the counters of a volume that this host no longer has.
func (t *traffic) forget(volume string) {
	of := prometheus.Labels{"volume": volume}
	t.seconds.DeletePartialMatch(of)
	t.bytes.DeletePartialMatch(of)
	t.failed.DeletePartialMatch(of)
}

// An operation is the counters of one operation on one volume.
type operation struct {
	seconds prometheus.Observer
	bytes   prometheus.Counter
	failed  prometheus.Counter
}

func (t *traffic) operation(volume, name string) operation {
	return operation{t.seconds.WithLabelValues(volume, name), t.bytes.WithLabelValues(volume, name), t.failed.WithLabelValues(volume, name)}
}

// done counts a request that began at that time, and returns its error.
func (o *operation) done(begun time.Time, n int64, err error) error {
	o.seconds.Observe(time.Since(begun).Seconds())
	if err != nil {
		o.failed.Inc()
		return err
	}
	o.bytes.Add(float64(n))
	return nil
}

// operations returns the counters of a volume.
type operations struct{ read, write, flush, clear operation }

func (t *traffic) volume(name string) *operations {
	return &operations{t.operation(name, "read"), t.operation(name, "write"), t.operation(name, "flush"), t.operation(name, "clear")}
}

// A collector reads the host's volumes whenever Prometheus does.
type collector struct {
	server  *server
	host    *replica.Host
	traffic *traffic
	stats   func() nbd.Stats

	mu    sync.Mutex
	known map[string]bool // volumes
}

var (
	volumeLabel = []string{"volume"}
	gauges      = struct {
		state, primary, acting, copies, minSize, epoch, leased, failed, entries, backfilling, backfilled, size, oldest *prometheus.Desc
		connections, ended, away, faults, broken, dataSize, dataFree, expiry                                           *prometheus.Desc
	}{
		state:       describe("volume_state", "1 for what this host is to the volume: active and those before it are a primary's.", "volume", "state"),
		primary:     describe("volume_primary", "Whether this host is the volume's primary.", volumeLabel...),
		acting:      describe("volume_acting", "Hosts in the acting set, by this host's map.", volumeLabel...),
		copies:      describe("volume_copies", "Hosts that are to have a copy.", volumeLabel...),
		minSize:     describe("volume_min_size", "Acting hosts without which the volume waits.", volumeLabel...),
		epoch:       describe("volume_epoch", "The epoch of this host's map.", volumeLabel...),
		leased:      describe("volume_served", "Whether this host, as the primary, may serve reads and acknowledge writes.", volumeLabel...),
		failed:      describe("volume_failed", "Whether this host's copy has ended by an error.", volumeLabel...),
		entries:     describe("volume_entries", "Entries since the volume was made that are in this host's log (head), committed, durable at all acting hosts, and in this host's store (stored).", "volume", "which"),
		backfilling: describe("volume_backfilling", "Whether the store is copied to this host.", volumeLabel...),
		backfilled:  describe("volume_backfilled_bytes", "Up to where the store was copied to this host.", volumeLabel...),
		oldest:      describe("volume_oldest_request_seconds", "Age of the oldest unanswered request of this host's NBD clients; 0: there is none.", volumeLabel...),
		size:        describe("volume_size_bytes", "Size of the volume.", volumeLabel...),
		connections: describe("nbd_connections", "Connections of NBD clients."),
		ended:       describe("nbd_connections_ended_total", "Connections of NBD clients that this host has ended, or not let in, by why.", "why"),
		away:        describe("etcd_away", "Whether etcd does not answer this host."),
		faults:      describe("records_refused", "Records in etcd that this host cannot use."),
		broken:      describe("volumes_broken", "Volumes that this host cannot open."),
		dataSize:    describe("data_bytes", "Size of the file system with logs and stores."),
		dataFree:    describe("data_free_bytes", "Free bytes of the file system with logs and stores."),
		expiry:      describe("certificate_expiry_timestamp_seconds", "Until when this host's certificate is valid, as it is on disk; 0: plain text, or it cannot be read."),
	}
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	g := &gauges
	for _, d := range []*prometheus.Desc{g.state, g.primary, g.acting, g.copies, g.minSize, g.epoch, g.leased, g.failed, g.entries, g.backfilling, g.backfilled, g.size, g.oldest,
		g.connections, g.ended, g.away, g.faults, g.broken, g.dataSize, g.dataFree, g.expiry} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	so := func(yes bool) float64 { return float64(grpcserver.One(yes)) }
	c.mu.Lock()
	defer c.mu.Unlock()
	here, g := map[string]bool{}, &gauges
	for _, v := range c.host.Volumes() {
		i, s := v.Info(), v.Status()
		if of, _ := c.host.Volume(i.Name); of != v {
			continue // it has no record, and another volume has its name: two of one name are no metrics
		}
		here[i.Name] = true
		gauge(g.state, 1, i.Name, s.State.String())
		gauge(g.primary, so(s.State >= core.Fencing), i.Name)
		gauge(g.acting, float64(len(s.Map.Acting)), i.Name)
		gauge(g.copies, float64(len(i.Hosts)), i.Name)
		gauge(g.minSize, float64(s.Map.MinSize), i.Name)
		gauge(g.epoch, float64(s.Map.Epoch), i.Name)
		gauge(g.leased, so(s.Leased), i.Name)
		gauge(g.failed, so(s.Failure != nil), i.Name)
		for which, n := range map[string]uint64{"head": s.Head.Index, "committed": s.Commit, "durable": s.Stable, "stored": s.Applied} {
			gauge(g.entries, float64(n), i.Name, which)
		}
		gauge(g.backfilling, so(s.Backfilling), i.Name)
		gauge(g.backfilled, float64(s.Copied), i.Name)
		gauge(g.size, float64(i.Size), i.Name)
		gauge(g.oldest, s.Oldest.Seconds(), i.Name)
	}
	for name := range c.known {
		if !here[name] {
			c.traffic.forget(name)
		}
	}
	c.known = here

	n := c.stats()
	gauge(g.connections, float64(n.Connections))
	for why, x := range map[string]int64{"full": n.Refused, "handshake": n.Handshakes, "protocol": n.Violations, "stalled": n.Stalls} {
		out <- prometheus.MustNewConstMetric(g.ended, prometheus.CounterValue, float64(x), why)
	}
	h := c.host.Health()
	gauge(g.away, so(h.Away != nil || !h.Known))
	gauge(g.faults, float64(len(h.Faults)))
	gauge(g.broken, float64(len(h.Broken)))
	size, free := space(c.server.cfg.Data)
	gauge(g.dataSize, float64(size))
	gauge(g.dataFree, float64(free))
	gauge(g.expiry, files(c.server.cfg).Expiry())
}
