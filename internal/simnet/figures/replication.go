package figures

import (
	"cmp"
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/internal/simnet"
	"github.com/mcrdma/mcrdma/internal/simnet/replicate"
)

// paperSchemes are those that MC-RDMA compares, and what it calls them.
var paperSchemes = []replicate.Scheme{replicate.Multicast, replicate.Chain, replicate.Fanout}

// blockSize is RDMC's in Table 1.
const blockSize = 1 << 20

// figure7 is MC-RDMA, figure 7: writes from A1 to B1, in its rack, and A2, in another, whose packets get lost. The
// paper names neither their size nor how many are under way: 64 KiB and 8, as in its figure 4.
func figure7() Figure {
	f := Figure{Name: "mc7", Title: "MC-RDMA, figure 7: loss on the long path", X: "loss", Unit: "Gb/s"}
	losses := []int{0, 16384, 4096, 1024}
	for _, scheme := range paperSchemes {
		for _, one := range losses {
			name, loss := "0", 0.0
			if one > 0 {
				name, loss = fmt.Sprintf("1/%d", one), 1/float64(one)
			}
			f.Jobs = append(f.Jobs, Job{Name: fmt.Sprintf("%s, loss %s", scheme, name), Weight: 0.4, Run: func(o Options) ([]Value, error) {
				gbps, late, err := lossy(o, testbed(), scheme, loss)
				return []Value{{Series: string(scheme), X: name, Value: gbps}, {Series: string(scheme) + ", 99% latency in µs", X: name, Value: late}}, err
			}})
		}
	}
	return f
}

// lossy returns the Gb/s of writes by a way, and the microseconds that 99 % of them take at most.
func lossy(o Options, p simnet.Params, scheme replicate.Scheme, loss float64) (gbps, late float64, err error) {
	w, err := newTestbed(p, 4, o)
	if err != nil {
		return 0, 0, err
	}
	w.keep(w.SetLoss("leaf", "tor3", loss))
	set, err := replicate.New(w.Sim, scheme, blockSize, w.host("A1"), w.host("B1"), w.host("A2"))
	if err = cmp.Or(w.err, err); err != nil {
		return 0, 0, err
	}
	const size, depth = 64 << 10, 8
	writes := 20_000
	if o.Quick {
		writes = 2000
	}
	took, err := replicate.Stream(w.Sim, set, size, depth, writes)
	if err != nil {
		return 0, 0, err
	}
	return float64(writes*size*8) / w.Now().Seconds() / 1e9, percentile(took, 0.99), nil
}

// mc9 are figure 9's values for 8 MB, in ms.
var mc9 = map[replicate.Scheme]float64{replicate.Multicast: 6.1, replicate.Chain: 11.3, replicate.Fanout: 10.8}

// figure9 is MC-RDMA, figure 9: five hosts of a pod collect a message from each of six hosts in other pods, and send them
// one of the same size, again and again. Milliseconds for an iteration. The paper's values for 8 MB are 6.1 (its
// own) "versus 11.3 and 10.8", which does not say which is which: the text's order elsewhere is CR, then fan-out.
func figure9() Figure {
	f := Figure{Name: "mc9", Title: "MC-RDMA, figure 9: an iteration of training", X: "message", Unit: "ms"}
	for _, racks := range []int{3, 1} {
		for _, mb := range []int{1, 4, 8} {
			for _, scheme := range append(paperSchemes, replicate.Blocks, replicate.RDMC) {
				series := fmt.Sprintf("%s, racks of %d", scheme, 9/racks)
				f.Jobs = append(f.Jobs, Job{Name: fmt.Sprintf("%s, %d MB", series, mb), Weight: 0.28 * float64(mb), Run: func(o Options) ([]Value, error) {
					ms, err := training(o, fatTree(), scheme, racks, mb*1_000_000)
					v := Value{Series: series, X: fmt.Sprintf("%d MB", mb), Value: ms}
					if mc9[scheme] > 0 && mb == 8 {
						v.Paper, v.Within = mc9[scheme], 0.15
					}
					return []Value{v}, err
				}})
			}
		}
	}
	return f
}

// training returns the milliseconds that an iteration takes on average.
func training(o Options, p simnet.Params, scheme replicate.Scheme, racks, size int) (float64, error) {
	const servers, workers = 5, 6
	iterations := 10
	if o.Quick {
		iterations = 2
	}
	topo, err := FatTree(racks, true)
	if err != nil {
		return 0, err
	}
	s, err := simnet.New(topo, p, o.Seed)
	if err != nil {
		return 0, err
	}
	hosts := s.Hosts() // nine of each pod
	others := s.Rand().Perm(len(hosts) - 9)
	var fail error
	var took []float64
	for i := range servers {
		var members []int
		for _, k := range others[i*workers:][:workers] {
			members = append(members, hosts[9+k])
		}
		set, err := replicate.New(s, scheme, blockSize, hosts[i], members...)
		if err != nil {
			return 0, err
		}
		var up []replicate.Set
		for _, m := range members {
			u, err := replicate.New(s, replicate.Fanout, 0, m, hosts[i])
			if err != nil {
				return 0, err
			}
			up = append(up, u)
		}
		keep := func(err error) {
			if err != nil && fail == nil {
				fail = err
				s.Stop()
			}
		}
		round := 0
		var begin func()
		begin = func() {
			start, missing := s.Now(), workers
			for _, u := range up {
				keep(u.Write(size, func() {
					if missing--; missing > 0 {
						return
					}
					keep(set.Write(size, func() {
						took = append(took, float64((s.Now()-start).Nanoseconds())/1e6)
						if round++; round < iterations {
							begin()
						}
					}))
				}))
			}
		}
		s.At(0, begin)
	}
	s.Run(time.Minute)
	switch {
	case fail != nil:
		return 0, fail
	case len(took) < servers*iterations:
		return 0, fmt.Errorf("%s: %d of %d iterations are complete", scheme, len(took), servers*iterations)
	}
	return mean(took), nil
}
