package figures

import (
	"fmt"
	"strings"

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
					r, err := storage(o, fatTree(), scheme, sizes, racks, full, load, requests)
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

// storage simulates figure 8's clients and storage hosts.
func storage(o Options, p simnet.Params, scheme replicate.Scheme, sizes workload.Sizes, racks int, full bool, load, requests int) (*workload.Result, error) {
	if o.Quick {
		requests = 1000
	}
	topo, err := FatTree(racks, full)
	if err != nil {
		return nil, err
	}
	s, err := simnet.New(topo, p, o.Seed)
	if err != nil {
		return nil, err
	}
	h := s.Hosts()
	return workload.Run(s, workload.Config{Scheme: scheme, Block: blockSize, Replicas: 3, Groups: 4, Sizes: sizes, Load: loadStep * float64(load),
		ReadShare: 0.5, Requests: requests, Clients: h[:27], Storage: h[27:]})
}

// waitUp is for how long data of storage hosts waits on its way up, in µs: in the switches of their racks and of their pods. It is
// all that switches above the racks can spare a read.
func waitUp(links []workload.LinkLoad) float64 {
	var sum, bytes [2]float64
	for _, l := range links {
		var pod int
		hop := -1
		if n, _ := fmt.Sscanf(l.From, "tor%d", &pod); n == 1 && strings.HasPrefix(l.To, "agg") {
			hop = 0
		} else if n, _ := fmt.Sscanf(l.From, "agg%d", &pod); n == 1 && strings.HasPrefix(l.To, "core") {
			hop = 1
		}
		if hop >= 0 && pod >= 3 { // the first three pods are clients
			sum[hop] += l.Wait * float64(l.Bytes)
			bytes[hop] += float64(l.Bytes)
		}
	}
	return sum[0]/bytes[0] + sum[1]/bytes[1]
}
