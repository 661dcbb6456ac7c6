package figures

import (
	"fmt"
	"math"
	"time"

	"github.com/mcrdma/mcrdma/internal/simnet"
	"github.com/mcrdma/mcrdma/internal/simnet/replicate"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// rdmcSchemes are the algorithms of RDMC's paper, and multicast by switches beside.
var rdmcSchemes = []replicate.Scheme{replicate.RDMC, replicate.Blocks, replicate.Tree, replicate.Sequential, replicate.Multicast}

// A transfer is a message from one host to others, or several at a time.
type transfer struct {
	fabric  func() (*topology.Topology, error)
	params  simnet.Params
	scheme  replicate.Scheme
	block   int
	size    int
	nodes   int // h0 and on, the sender among them
	senders int // of groups with the same members that send one message each, at the same time; 0: one
}

// time is how long it takes until all have all, in seconds.
func (x transfer) time(seed uint64) (float64, error) {
	topo, err := x.fabric()
	if err != nil {
		return 0, err
	}
	s, err := simnet.New(topo, x.params, seed)
	if err != nil {
		return 0, err
	}
	hosts := s.Hosts()[:x.nodes]
	var sets []replicate.Set
	for i := range max(1, x.senders) {
		var others []int
		for k := 1; k < len(hosts); k++ {
			others = append(others, hosts[(i+k)%len(hosts)])
		}
		set, err := replicate.New(s, x.scheme, x.block, hosts[i], others...)
		if err != nil {
			return 0, err
		}
		sets = append(sets, set)
	}
	const forming = 10 * time.Millisecond // groups do so before
	s.Run(forming)
	left := len(sets)
	for _, set := range sets {
		if err := set.Write(x.size, func() {
			if left--; left == 0 {
				s.Stop()
			}
		}); err != nil {
			return 0, err
		}
	}
	s.Run(10 * time.Minute)
	for _, set := range sets {
		if err := set.Failed(); err != nil {
			return 0, err
		}
	}
	if left > 0 {
		return 0, fmt.Errorf("%s: %d of %d messages did not arrive", x.scheme, left, len(sets))
	}
	return (s.Now() - forming).Seconds(), nil
}

// weight is how long a simulation of it takes: by the packets that arrive.
func (x transfer) weight() float64 {
	return float64(x.size) / (1 << 30) * float64(x.nodes-1) * float64(max(1, x.senders)) * 0.15
}

// job makes a value of a transfer.
func (x transfer) job(series, at string, value func(seconds float64) Value) Job {
	return Job{Name: series + ", " + at, Weight: x.weight(), Run: func(o Options) ([]Value, error) {
		x := x
		if o.Quick {
			x.size = max(min(x.size, x.block), x.size/8)
		}
		t, err := x.time(o.Seed)
		v := value(t)
		v.Series, v.X = series, at
		if o.Quick {
			v.Paper = 0 // which is of the whole size
		}
		return []Value{v}, err
	}}
}

func star(hosts int) func() (*topology.Topology, error) {
	return func() (*topology.Topology, error) { return Star(hosts) }
}

func milliseconds(t float64) Value { return Value{Value: t * 1e3} }

// table1 is RDMC (DSN 2018), Table 1: 256 MB to three receivers in blocks of 1 MB, by the binomial pipeline. Milliseconds until
// all have it. The other algorithms, and multicast by the switch, are beside it.
func table1() Figure {
	f := Figure{Name: "rdmc1", Title: "RDMC, table 1: 256 MB to three receivers", X: "", Unit: "ms"}
	for _, scheme := range []replicate.Scheme{replicate.RDMC, replicate.Blocks, replicate.Fanout, replicate.Multicast} {
		x := transfer{fabric: star(4), params: stampede(), scheme: scheme, block: blockSize, size: 256 << 20, nodes: 4}
		f.Jobs = append(f.Jobs, x.job(string(scheme), "until all have it", func(t float64) Value {
			v := milliseconds(t)
			if scheme == replicate.RDMC {
				v.Paper, v.Within = 62.084, 0.1
			}
			return v
		}))
	}
	return f
}

// rdmc4 is RDMC, figure 4: latency by the number of nodes. The paper's values are only drawn.
func rdmc4() Figure {
	f := Figure{Name: "rdmc4", Title: "RDMC, figure 4: 256 MB to several nodes, in blocks of 1 MB", X: "nodes", Unit: "ms"}
	for _, n := range []int{2, 4, 8, 12, 16} {
		for _, scheme := range rdmcSchemes {
			x := transfer{fabric: star(16), params: fractus(), scheme: scheme, block: blockSize, size: 256 << 20, nodes: n}
			f.Jobs = append(f.Jobs, x.job(string(scheme), fmt.Sprint(n), milliseconds))
		}
	}
	return f
}

// rdmc6 is RDMC, figure 6: bandwidth by the size of blocks, for groups of four. The paper's values are only drawn.
func rdmc6() Figure {
	f := Figure{Name: "rdmc6", Title: "RDMC, figure 6: blocks of several sizes, groups of four", X: "block", Unit: "Gb/s"}
	for _, block := range []int{16, 64, 256, 1024, 4096, 16384} {
		for _, m := range []struct {
			name string
			size int
		}{{"16 KiB", 16 << 10}, {"1 MiB", 1 << 20}, {"8 MiB", 8 << 20}, {"128 MiB", 128 << 20}} {
			x := transfer{fabric: star(4), params: fractus(), scheme: replicate.RDMC, block: block << 10, size: m.size, nodes: 4}
			size := float64(m.size)
			f.Jobs = append(f.Jobs, Job{Name: fmt.Sprintf("%s in blocks of %d KiB", m.name, block), Weight: x.weight(), Run: func(o Options) ([]Value, error) {
				t, err := x.time(o.Seed)
				return []Value{{Series: m.name, X: fmt.Sprintf("%d KiB", block), Value: size * 8 / t / 1e9}}, err
			}})
		}
	}
	return f
}

// rdmc8 is RDMC, figure 8: one message to many nodes. "Whether making 127, 255 or 511 copies, the total time required is almost
// the same"; sequential send is linear, and was extrapolated for 512.
func rdmc8() Figure {
	f := Figure{Name: "rdmc8", Title: "RDMC, figure 8: 256 MB to many nodes", X: "nodes", Unit: "ms"}
	for _, n := range []int{4, 32, 128, 256, 512} {
		for _, scheme := range []replicate.Scheme{replicate.RDMC, replicate.Sequential} {
			if scheme == replicate.Sequential && n > 128 {
				continue // as long as linear, and nothing else is of interest
			}
			x := transfer{fabric: func() (*topology.Topology, error) { return Racks((n+31)/32, 32) }, params: sierra(), scheme: scheme,
				block: blockSize, size: 256 << 20, nodes: n}
			f.Jobs = append(f.Jobs, x.job(string(scheme), fmt.Sprint(n), milliseconds))
		}
	}
	return f
}

// rdmc9 is RDMC, figure 9: Microsoft's Cosmos. One node writes to random three of 15. The trace is not public: sizes are lognormal
// with its median of 12 MB and its mean of 29 MB. One write at a time.
func rdmc9() Figure {
	f := Figure{Name: "rdmc9", Title: "RDMC, figure 9: writes of Cosmos' sizes to three of 15 nodes", X: "", Unit: "Gb/s, and ms"}
	paper := map[replicate.Scheme]float64{replicate.RDMC: 93}
	for _, scheme := range rdmcSchemes {
		f.Jobs = append(f.Jobs, Job{Name: string(scheme), Weight: 2, Run: func(o Options) ([]Value, error) {
			gbps, took, err := cosmos(o, scheme)
			if err != nil {
				return nil, err
			}
			return []Value{{Series: string(scheme), X: "Gb/s", Value: gbps, Paper: paper[scheme], Within: 0.1},
				{Series: string(scheme), X: "median, ms", Value: percentile(took, 0.5)}, {Series: string(scheme), X: "mean, ms", Value: mean(took)},
				{Series: string(scheme), X: "90 %, ms", Value: percentile(took, 0.9)}}, nil
		}})
	}
	return f
}

// cosmos returns how much is replicated in a second, and the milliseconds that each write takes.
func cosmos(o Options, scheme replicate.Scheme) (gbps float64, took []float64, err error) {
	writes := 200
	if o.Quick {
		writes = 20
	}
	topo, err := Star(16)
	if err != nil {
		return 0, nil, err
	}
	s, err := simnet.New(topo, fractus(), o.Seed)
	if err != nil {
		return 0, nil, err
	}
	h := s.Hosts()
	var sets []replicate.Set
	for a := 1; a < 16; a++ {
		for b := a + 1; b < 16; b++ {
			for c := b + 1; c < 16; c++ {
				set, err := replicate.New(s, scheme, blockSize, h[0], h[a], h[b], h[c])
				if err != nil {
					return 0, nil, err
				}
				sets = append(sets, set)
			}
		}
	}
	const forming = 100 * time.Millisecond
	s.Run(forming)
	sigma := math.Sqrt(2 * math.Log(29./12)) // mean/median = exp(σ²/2)
	bytes := 0
	var write func()
	write = func() {
		if len(took) == writes || err != nil {
			s.Stop()
			return
		}
		begin, size := s.Now(), int(min(12e6*math.Exp(sigma*s.Rand().NormFloat64()), 1e9))
		bytes += size
		err = sets[s.Rand().IntN(len(sets))].Write(size, func() {
			took = append(took, float64((s.Now()-begin).Nanoseconds())/1e6)
			write()
		})
	}
	write()
	s.Run(time.Hour)
	if err == nil && len(took) < writes {
		err = fmt.Errorf("%s: %d of %d writes are complete", scheme, len(took), writes)
	}
	return float64(bytes) * 8 / (s.Now() - forming).Seconds() / 1e9, took, err
}

// rdmc10 is RDMC, figure 10: groups with the same members and different senders, all at once. The whole of what is sent, by the
// time that it takes. "Quite close to the limits": of 100 Gb/s on Fractus, and of 16 on Apt.
func rdmc10() Figure {
	f := Figure{Name: "rdmc10", Title: "RDMC, figure 10: overlapping groups, 100 MB", X: "nodes", Unit: "Gb/s"}
	for _, c := range []struct {
		name   string
		params simnet.Params
		fabric func() (*topology.Topology, error)
	}{{"Fractus", fractus(), star(16)}, {"Apt", apt(), func() (*topology.Topology, error) { return Racks(4, 4) }}} {
		for _, scheme := range []replicate.Scheme{replicate.RDMC, replicate.Hybrid, replicate.Multicast} {
			if scheme == replicate.Hybrid && c.name == "Fractus" {
				continue // there is one rack
			}
			for _, n := range []int{4, 8, 16} {
				for _, senders := range []int{n, n / 2, 1} {
					x := transfer{fabric: c.fabric, params: c.params, scheme: scheme, block: blockSize, size: 100_000_000, nodes: n, senders: senders}
					series := fmt.Sprintf("%s, %s, %s", c.name, scheme, map[int]string{n: "all send", n / 2: "half send", 1: "one sends"}[senders])
					f.Jobs = append(f.Jobs, Job{Name: fmt.Sprintf("%s, %d nodes", series, n), Weight: x.weight(), Run: func(o Options) ([]Value, error) {
						x := x
						if o.Quick {
							x.size /= 8
						}
						t, err := x.time(o.Seed)
						return []Value{{Series: series, X: fmt.Sprint(n), Value: float64(x.size) * 8 * float64(senders) / t / 1e9}}, err
					}})
				}
			}
		}
	}
	return f
}
