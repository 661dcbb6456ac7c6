package figures

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/simnet"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A Figure is one of a paper's, or a table, as jobs that can run in any order and side by side.
type Figure struct {
	Name, Title string
	X, Unit     string // what the points are at; of the values
	Jobs        []Job
}

// A Job is a simulation.
type Job struct {
	Name   string
	Weight float64 // how long it takes, in comparison with others: some seconds of a processor, without Quick
	Run    func(o Options) ([]Value, error)
}

// Options are how figures are made.
type Options struct {
	Seed  uint64
	Quick bool // shorter, and less exact
}

// A Value is a point of a curve, and what the paper says of it.
type Value struct {
	Series string  `json:"series"`
	X      string  `json:"x"`
	Value  float64 `json:"value"`
	// Low and High are of several seeds, of which Value is the mean.
	Low  float64 `json:"low,omitzero"`
	High float64 `json:"high,omitzero"`
	// Paper is the paper's value, 0: it gives none. Within is how far from it the value should be, as a share.
	Paper  float64 `json:"paper,omitzero"`
	Within float64 `json:"within,omitzero"`
}

// Off is how far the value is from the paper's, as a share.
func (v *Value) Off() float64 { return v.Value/v.Paper - 1 }

// Missed says that the value is farther from the paper's than it should be.
func (v *Value) Missed() bool { return v.Paper != 0 && math.Abs(v.Off()) > v.Within }

// A flow sends writes without end.
type flow struct {
	sender *simnet.Endpoint
	bytes  int // acknowledged
	err    error
}

// unending keeps a queue pair busy with writes of 64 KiB, of which eight are under way.
func unending(e *simnet.Endpoint) *flow {
	const size = 64 << 10
	f := &flow{sender: e}
	post := func() {
		if err := e.Post(qp.OpWrite, size, 0); err != nil && f.err == nil {
			f.err = err
		}
	}
	e.Sent = func(wc *qp.WC) {
		if wc.Status != qp.StatusSuccess {
			f.err = fmt.Errorf("a write failed: %v", wc.Status)
			return
		}
		f.bytes += size
		post()
	}
	for range 32 {
		post()
	}
	return f
}

// A world is a simulation on the testbed.
type world struct {
	*simnet.Sim
	err error
}

func newTestbed(p simnet.Params, uplinks int, o Options) (*world, error) {
	t, err := Testbed(uplinks)
	if err != nil {
		return nil, err
	}
	s, err := simnet.New(t, p, o.Seed)
	if err != nil {
		return nil, err
	}
	w := &world{Sim: s}
	if uplinks == 1 { // one link as fast as the four
		for i := range 4 {
			tor := fmt.Sprintf("tor%d", i+1)
			w.keep(s.SetRate(tor, "leaf", 4*p.FabricRate))
			w.keep(s.SetRate("leaf", tor, 4*p.FabricRate))
		}
	}
	return w, w.err
}

func (w *world) keep(err error) { w.err = cmp.Or(w.err, err) }

// host finds a host that the fabric has.
func (w *world) host(name string) int {
	h, err := w.Host(name)
	w.keep(err)
	return h
}

func (w *world) connect(from, to string) *simnet.Endpoint {
	a, _ := w.Connect(w.host(from), w.host(to))
	return a
}

func (w *world) group(from string, to ...string) *simnet.Endpoint {
	var hosts []int
	for _, h := range to {
		hosts = append(hosts, w.host(h))
	}
	g, err := w.Group(w.host(from), hosts...)
	if err != nil {
		w.keep(err)
		return w.connect(from, to[0])
	}
	return g.Sender
}

// most is the payload that a link of a rate carries, in bits a second.
func most(p simnet.Params) float64 {
	return p.HostRate * float64(p.MTU) / float64(p.MTU+p.Overhead())
}

// between lets the simulation run until a time, and returns what flows then get until another, as a share of what
// one alone would get.
func (w *world) between(from, to time.Duration, flows ...*flow) []float64 {
	w.Run(from)
	before := make([]int, len(flows))
	for i, f := range flows {
		before[i] = f.bytes
	}
	w.Run(to)
	shares := make([]float64, len(flows))
	for i, f := range flows {
		shares[i] = float64(f.bytes-before[i]) * 8 / (to - from).Seconds() / most(w.Params())
		w.keep(f.err)
	}
	return shares
}

// mean is of values that there is at least one of.
func mean(list []float64) float64 {
	sum := 0.0
	for _, v := range list {
		sum += v
	}
	return sum / float64(len(list))
}

// percentile is of values that there is at least one of.
func percentile(list []float64, p float64) float64 {
	list = slices.Clone(list)
	slices.Sort(list)
	return list[min(len(list)-1, int(p*float64(len(list))))]
}
