package figures

import (
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/internal/simnet"
)

// figure5 is MC-RDMA, figure 5: three flows begin one after the other. Shares of the line rate.
func figure5() Figure {
	run := func(o Options) ([]Value, error) {
		w, err := newTestbed(testbed(), 4, o)
		if err != nil {
			return nil, err
		}
		phase := 100 * time.Millisecond
		if o.Quick {
			phase = 40 * time.Millisecond
		}
		var flows []*flow
		var values []Value
		names := []string{"fm1: A1 to C1, D1", "fm2: C1 to D1, A2", "fu1: D1 to A2"}
		// The paper's text: fm1 falls to 1/2 and 1/3. It names no value of the others.
		paper := [3][3]float64{{1, 1. / 2, 1. / 3}}
		for n := range 3 {
			switch n {
			case 0:
				flows = append(flows, unending(w.group("A1", "C1", "D1")))
			case 1:
				flows = append(flows, unending(w.group("C1", "D1", "A2")))
			case 2:
				flows = append(flows, unending(w.connect("D1", "A2")))
			}
			start := time.Duration(n) * phase
			for i, share := range w.between(start+phase/2, start+phase, flows...) {
				values = append(values, Value{Series: names[i], X: []string{"fm1", "fm1, fm2", "fm1, fm2, fu1"}[n], Value: share, Paper: paper[i][n], Within: 0.1})
			}
		}
		return values, w.err
	}
	return Figure{Name: "mc5", Title: "MC-RDMA, figure 5: flows that begin one after the other", X: "flows", Unit: "share of the line rate",
		Jobs: []Job{{Name: "three flows", Weight: 1.4, Run: run}}}
}

// figure6 is MC-RDMA, figure 6: a group with seven receivers, of which k share their links with a connection each.
// What the paper predicts (§IV-D): C/(k+1) for the group, and the rest for each connection.
func figure6(uplinks int) Figure {
	f := Figure{Name: "mc6", Title: "MC-RDMA, figure 6: a group with k congested receivers", X: "congested receivers", Unit: "share of the line rate"}
	if uplinks > 1 {
		f.Name, f.Title = "mc6-ecmp", f.Title+", four links at each rack instead of one as fast"
	}
	for k := 1; k <= 7; k++ {
		for _, filter := range []bool{false, true} {
			name := fmt.Sprintf("k=%d", k)
			if filter {
				name += ", CNPs 50 µs apart"
			}
			f.Jobs = append(f.Jobs, Job{Name: name, Weight: 1 + 0.7*float64(k), Run: func(o Options) ([]Value, error) {
				p := testbed()
				if filter { // one CNP for all receivers in the time in which a receiver sends one
					p.CNPGap = 50 * time.Microsecond
				}
				group, others, err := congested(o, p, uplinks, k)
				x := fmt.Sprint(k)
				if filter {
					return []Value{{Series: "group, CNPs 50 µs apart", X: x, Value: group}, {Series: "connections, CNPs 50 µs apart", X: x, Value: others}}, err
				}
				n := float64(k)
				return []Value{{Series: "group", X: x, Value: group, Paper: 1 / (n + 1), Within: 0.1},
					{Series: "connections", X: x, Value: others, Paper: n / (n + 1), Within: 0.1}}, err
			}})
		}
	}
	return f
}

// congested returns the shares of a group with seven receivers, of which k share their links with a connection each, and of
// these connections.
func congested(o Options, p simnet.Params, uplinks, k int) (group, others float64, err error) {
	w, err := newTestbed(p, uplinks, o)
	if err != nil {
		return 0, 0, err
	}
	// Connections make a ring, so that each host sends one and receives one: C1 to B1, D1 to C1, as in the text.
	ring := []string{"B1", "C1", "D1", "A2", "B2", "C2", "D2"}
	flows := []*flow{unending(w.group("A1", ring...))}
	for i := range k {
		flows = append(flows, unending(w.connect(ring[(i+1)%len(ring)], ring[i])))
	}
	end := 400 * time.Millisecond // at 100 ms rates still moved: with k=4, the group's share was 0.240 there, and 0.222 here
	if o.Quick {
		end = 40 * time.Millisecond
	}
	shares := w.between(end/2, end, flows...)
	return shares[0], mean(shares[1:]), w.err
}
