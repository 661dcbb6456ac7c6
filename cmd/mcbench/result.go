package main

import (
	"math"
	"slices"
	"time"
)

// A result is one line of the report: one way, size, depth and loss. The JSON has perftest's keys
// where they exist. Times are in microseconds, rates in Gb/s of payload, and in millions of writes
// per second.
type result struct {
	Way        string  `json:"Way"`
	Path       string  `json:"Path"`
	Algorithm  string  `json:"Algorithm,omitempty"`
	Transport  string  `json:"Transport,omitempty"`
	Depth      int     `json:"Depth"`
	Loss       float64 `json:"Loss,omitempty"` // share of packets between a lab's racks
	MsgSize    int     `json:"MsgSize"`
	Iterations int     `json:"n_iterations"`
	BWPeak     float64 `json:"BW_peak"`
	BWAverage  float64 `json:"BW_average"`
	MsgRate    float64 `json:"MsgRate"`
	Min        float64 `json:"t_min"`
	Max        float64 `json:"t_max"`
	Typical    float64 `json:"t_typical"`
	Avg        float64 `json:"t_avg"`
	Stdev      float64 `json:"t_stdev"`
	P99        float64 `json:"t_99"`
	P999       float64 `json:"t_99.9"`
	CPU        float64 `json:"CPU_per_op_usec"`  // of the sender
	Uplink     float64 `json:"Uplink,omitempty"` // bytes on the sender's cable per byte of payload; only in a lab
	Posts      float64 `json:"Posts_per_op"`
	Checked    bool    `json:"Checked"`
	// Ratios to the first way: medians of the rounds' ratios.
	LatencyRatio   float64 `json:"Latency_ratio,omitempty"`
	BandwidthRatio float64 `json:"Bandwidth_ratio,omitempty"`
	CPURatio       float64 `json:"CPU_ratio,omitempty"`
}

// summarize computes the results of samples.
func (r *result) summarize(samples []*sample) {
	var all []time.Duration
	var took, cpu time.Duration
	var uplink uint64
	for _, s := range samples {
		all = append(all, s.latency...)
		took, cpu, uplink = took+s.took, cpu+s.cpu, uplink+s.uplink
		r.BWPeak = max(r.BWPeak, s.peak(r.MsgSize, r.Depth))
	}
	n := len(all)
	if r.Iterations = n; n == 0 {
		return
	}
	slices.Sort(all)
	var sum, squares float64
	for _, d := range all {
		sum += us(d)
	}
	r.Avg = sum / float64(n)
	for _, d := range all {
		squares += (us(d) - r.Avg) * (us(d) - r.Avg)
	}
	r.Min, r.Max, r.Typical, r.Stdev = us(all[0]), us(all[n-1]), us(all[n/2]), math.Sqrt(squares/float64(n))
	r.P99, r.P999 = us(percentile(all, 99)), us(percentile(all, 99.9))
	r.BWAverage = gbps(n*r.MsgSize, took)
	r.MsgRate = float64(n) / us(took)
	r.CPU = us(cpu) / float64(n)
	r.Uplink = float64(uplink) / float64(n) / float64(r.MsgSize)
}

// peak returns the best rate of payload over any tenth of the writes, but at least as many as are
// in flight, because these may end together.
func (s *sample) peak(size, depth int) float64 {
	ends := append([]time.Duration{0}, slices.Sorted(slices.Values(s.ends))...)
	w := min(max(s.n/10, 2*depth), s.n)
	var best float64
	for i := w; i < len(ends); i++ {
		best = max(best, gbps(w*size, ends[i]-ends[i-w]))
	}
	return best
}

// mean returns the mean latency in microseconds.
func (s *sample) mean() float64 {
	var sum time.Duration
	for _, d := range s.latency {
		sum += d
	}
	return us(sum) / float64(max(s.n, 1))
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// gbps returns a rate in Gb/s; 0 if no time has passed.
func gbps(bytes int, took time.Duration) float64 {
	if took <= 0 {
		return 0
	}
	return float64(bytes) * 8 / float64(took.Nanoseconds())
}

// percentile returns the smallest value that is not exceeded by that many percent. There is at
// least one value.
func percentile(sorted []time.Duration, p float64) time.Duration {
	i := int(math.Ceil(p*float64(len(sorted))/100-1e-9)) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// median returns the median of some numbers; 0 if there are none.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// compare computes the ratios to another way, round by round.
func (r *result) compare(own, other []*sample) {
	var latency, bandwidth, cpu []float64
	for i, s := range own {
		o := other[i]
		if s.n == 0 || o.n == 0 {
			continue
		}
		latency = append(latency, s.mean()/o.mean())
		bandwidth = append(bandwidth, gbps(s.n*r.MsgSize, s.took)/gbps(o.n*r.MsgSize, o.took))
		if o.cpu > 0 {
			cpu = append(cpu, us(s.cpu)/float64(s.n)/(us(o.cpu)/float64(o.n)))
		}
	}
	r.LatencyRatio, r.BandwidthRatio, r.CPURatio = median(latency), median(bandwidth), median(cpu)
}
