package figures

import (
	"fmt"

	"github.com/mcrdma/mcrdma/internal/simnet"
	"github.com/mcrdma/mcrdma/internal/simnet/replicate"
	"github.com/mcrdma/mcrdma/internal/simnet/workload"
)

// loadStep is what one step of figure 8's network load stands for, which the paper does not say: so much of the clients' links.
// At 8, storage hosts then receive 60 % of their links' rate.
const loadStep = 0.05

// figure8 is MC-RDMA, figure 8: 27 clients and 27 storage hosts, half of the requests reads. Mean latencies in µs. The paper gives
// shapes: multicast is lowest at each load, some 30 % lower at load 8 of web search; with Alibaba's storage, support in all
// switches instead of those of racks alone makes 33 to 47 % less.
func figure8(sizes workload.Sizes, racks int) Figure {
	f := Figure{Name: fmt.Sprintf("mc8-%s-racks%d", sizes.Name, 9/racks), X: "load", Unit: "mean latency in µs, of reads where nothing else is said",
		Title: fmt.Sprintf("MC-RDMA, figure 8: storage, %s, racks of %d", sizes.Name, 9/racks)}
	requests, weight := 20_000, 2.5
	if sizes.Name == "websearch" { // messages of 1.7 MB on average
		requests, weight = 4000, 9
	}
	for load := 1; load <= 8; load++ {
		for _, scheme := range paperSchemes {
			for _, full := range []bool{true, false} {
				series := string(scheme)
				if !full {
					if scheme != replicate.Multicast {
						continue
					}
					series += ", racks' switches only"
				}
				f.Jobs = append(f.Jobs, Job{Name: fmt.Sprintf("%s, load %d", series, load), Weight: weight, Run: func(o Options) ([]Value, error) {
					n := requests
					if o.Quick {
						n = 1000
					}
					topo, err := FatTree(racks, full)
					if err != nil {
						return nil, err
					}
					s, err := simnet.New(topo, fatTree(), o.Seed)
					if err != nil {
						return nil, err
					}
					h := s.Hosts()
					r, err := workload.Run(s, workload.Config{Scheme: scheme, Block: blockSize, Replicas: 3, Groups: 4, Sizes: sizes, Load: loadStep * float64(load),
						ReadShare: 0.5, Requests: n, Clients: h[:27], Storage: h[27:]})
					if err != nil {
						return nil, err
					}
					return []Value{{Series: series, X: fmt.Sprint(load), Value: r.Reads.Mean},
						{Series: series + ", writes", X: fmt.Sprint(load), Value: r.Writes.Mean}}, nil
				}})
			}
		}
	}
	return f
}
