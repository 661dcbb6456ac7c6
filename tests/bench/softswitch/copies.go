package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/bench/report"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// copies measures the cost of copying in each mode of the ICRC: a WRITE of that many bytes to three
// receivers, in this process, without ports. The modes run in turns. Times are processor times, so
// that other load matters less; the output has medians. It returns the ratio of packets per second
// of mode neutral.
func copies(w io.Writer, rounds int, span time.Duration, payload int) (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g := dataplane.Group{Index: 7, Sender: 1, SenderQPN: 0x11, MCID: 0x80_0005, Receivers: []int{2, 3, 4}, Epoch: 1}
	for i := range g.Receivers {
		g.Targets = append(g.Targets, dataplane.Target{QPN: dataplane.ReceiverQPN(i), RKey: dataplane.ReceiverRKey(i), VA: dataplane.SenderVA})
	}
	modes := []struct {
		name   string
		number uint64
		times  []float64 // µs per packet
	}{{"recompute", dataplane.Recompute, nil}, {"neutral", dataplane.Neutral, nil}, {"nic-check-off", dataplane.CheckOff, nil}}
	s, err := dataplane.NewRack()
	if err != nil {
		return 0, err
	}
	s.Install(g)
	frame := g.Data(rocev2.WriteOnly, 0, make([]byte, payload)).Frame()
	out := 0
	run := func(span time.Duration) (float64, error) {
		const batch = 500
		n, begin := 0, time.Now()
		before, err := report.UsedByThread()
		if err != nil {
			return 0, err
		}
		for out = 0; time.Since(begin) < span; n += batch {
			for range batch {
				s.Process(s.Now, 1, frame, func(uint16, []byte) { out++ })
			}
		}
		used, err := report.UsedByThread()
		if err != nil {
			return 0, err
		}
		if out != 3*n {
			return 0, fmt.Errorf("%d copies of %d packets; drops %v", out, n, s.Dropped())
		}
		return (used - before).Seconds() * 1e6 / float64(n), nil
	}
	for range rounds {
		for i := range modes {
			s.SetICRC(modes[i].number)
			if _, err := run(span / 10); err != nil {
				return 0, err
			}
			t, err := run(span)
			if err != nil {
				return 0, err
			}
			modes[i].times = append(modes[i].times, t)
		}
	}
	fmt.Fprintf(w, "\nWRITEs of %d bytes to three receivers, by one processor, without ports\n", payload)
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "ICRC\tCPU µs/packet\tmin\tmax\tratio\t")
	ratio := 0.0
	for i, m := range modes {
		slices.Sort(m.times)
		median := m.times[len(m.times)/2]
		base := modes[0].times[len(m.times)/2]
		if i == 1 {
			ratio = base / median
		}
		fmt.Fprintf(tab, "%s\t%.2f\t%.2f\t%.2f\t%.2f\t\n", m.name, median, m.times[0], m.times[len(m.times)-1], base/median)
	}
	return ratio, tab.Flush()
}
