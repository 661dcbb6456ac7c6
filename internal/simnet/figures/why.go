package figures

import (
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/internal/simnet/replicate"
	"github.com/mcrdma/mcrdma/internal/simnet/workload"
)

// why are experiments about values that are missed: what comes of each if one thing is changed.
func why() Figure {
	f := Figure{Name: "why", Title: "values that are missed, with one thing changed", X: "figure", Unit: "each as in its figure"}
	add := func(name string, weight float64, value Value, run func(Options) (float64, error)) {
		value.X = name
		f.Jobs = append(f.Jobs, Job{Name: name + ", " + value.Series, Weight: weight, Run: func(o Options) ([]Value, error) {
			v, err := run(o)
			value.Value = v
			return []Value{value}, err
		}})
	}
	add("mc5, fm1", 1.4, Value{Series: "the connection goes from A2 to D1", Paper: 1. / 3, Within: 0.1}, func(o Options) (float64, error) {
		w, err := newTestbed(testbed(), 4, o)
		if err != nil {
			return 0, err
		}
		flows := []*flow{unending(w.group("A1", "C1", "D1")), unending(w.group("C1", "D1", "A2")), unending(w.connect("A2", "D1"))}
		end := 300 * time.Millisecond
		if o.Quick {
			end = 60 * time.Millisecond
		}
		return w.between(end*2/3, end, flows...)[0], w.err
	})
	for _, uplinks := range []int{4, 1} {
		for _, k := range []int{4, 7} {
			add(fmt.Sprintf("mc6, %d links, k=%d", uplinks, k), 1+0.7*float64(k), Value{Series: "alpha every 15 µs, for 55", Paper: 1 / float64(k+1), Within: 0.1},
				func(o Options) (float64, error) {
					p := testbed()
					p.CC.AlphaPeriod = 15 * time.Microsecond
					group, _, err := congested(o, p, uplinks, k)
					return group, err
				})
		}
	}
	for _, scheme := range paperSchemes {
		add(fmt.Sprintf("mc7, 1/1024, %s", scheme), 0.4, Value{Series: "an ACK timer of 1 ms, for 67"}, func(o Options) (float64, error) {
			p := testbed()
			p.Timeout = 8
			gbps, _, err := lossy(o, p, scheme, 1./1024)
			return gbps, err
		})
		add(fmt.Sprintf("mc9, 8 MB, %s", scheme), 2.3, Value{Series: "no marks", Paper: mc9[scheme], Within: 0.15}, func(o Options) (float64, error) {
			p := fatTree()
			p.KMax = 0
			return training(o, p, scheme, 3, 8_000_000)
		})
	}
	alistorage := workload.Known()[1]
	for _, racks := range []int{3, 1} {
		for _, load := range []int{2, 4, 8} {
			name := fmt.Sprintf("mc8-alistorage-racks%d, load %d", 9/racks, load)
			add(name, 2.5, Value{Series: "racks' switches only: % of a read that data waits on the way up"}, func(o Options) (float64, error) {
				r, err := storage(o, fatTree(), replicate.Multicast, alistorage, racks, false, load, 20_000)
				if err != nil {
					return 0, err
				}
				return 100 * waitUp(r.Links) / r.Reads.Mean, nil
			})
			for _, n := range []int{20_000, 100_000} {
				add(name, float64(n)/8000, Value{Series: fmt.Sprintf("mean latency in µs of writes, of %d requests", n)}, func(o Options) (float64, error) {
					r, err := storage(o, fatTree(), replicate.Multicast, alistorage, racks, true, load, n)
					if err != nil {
						return 0, err
					}
					return r.Writes.Mean, nil
				})
			}
		}
	}
	add("rdmc1", 1, Value{Series: "links of 35.2 Gb/s, as the paper measured", Paper: 62.1, Within: 0.1}, func(o Options) (float64, error) {
		x := transfer{fabric: star(4), params: stampede(), scheme: "rdmc", block: blockSize, size: 256 << 20, nodes: 4}
		x.params.HostRate = 35.2e9
		s, err := x.time(o.Seed)
		return 1000 * s, err
	})
	return f
}
