package figures

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/simnet"
	"github.com/mcrdma/mcrdma/internal/simnet/replicate"
)

// quick runs the jobs of a figure whose names contain a text.
func quick(t *testing.T, name, only string) map[[2]string]Value {
	t.Helper()
	f, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	all := map[[2]string]Value{}
	for _, j := range f.Jobs {
		if !strings.Contains(j.Name, only) {
			continue
		}
		values, err := j.Run(Options{Seed: 1, Quick: true})
		if err != nil {
			t.Fatalf("%s: %v", j.Name, err)
		}
		for _, v := range values {
			t.Logf("%s: %-40s %-14s %8.3f", f.Name, v.Series, v.X, v.Value)
			all[[2]string{v.Series, v.X}] = v
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no job with %q", name, only)
	}
	return all
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got/want-1) > within {
		t.Errorf("%s: %.3f, want %.3f", what, got, want)
	}
}

// TestFigure5: a flow alone has the line, two share a link evenly, and a group with two congested receivers
// gets least.
func TestFigure5(t *testing.T) {
	v := quick(t, "mc5", "")
	fm1, fm2, fu1 := "fm1: A1 to C1, D1", "fm2: C1 to D1, A2", "fu1: D1 to A2"
	near(t, "alone", v[[2]string{fm1, "fm1"}].Value, 1, 0.02)
	near(t, "fm1 of two", v[[2]string{fm1, "fm1, fm2"}].Value, 0.5, 0.1)
	near(t, "fm2 of two", v[[2]string{fm2, "fm1, fm2"}].Value, 0.5, 0.1)
	const three = "fm1, fm2, fu1"
	if least := v[[2]string{fm2, three}].Value; least >= v[[2]string{fm1, three}].Value || least >= v[[2]string{fu1, three}].Value {
		t.Errorf("fm2, which has two congested receivers, gets %.3f, not the least", least)
	}
}

// TestFigure6: the group and a connection share the link of the one congested receiver evenly.
func TestFigure6(t *testing.T) {
	v := quick(t, "mc6", "k=1")
	near(t, "group", v[[2]string{"group", "1"}].Value, 0.5, 0.15)
	near(t, "connection", v[[2]string{"connections", "1"}].Value, 0.5, 0.15)
}

// TestFigure7: loss costs throughput, in each way: little up to 1/4096, and then what ACK timers take.
func TestFigure7(t *testing.T) {
	for _, scheme := range []replicate.Scheme{replicate.Multicast, replicate.Chain} {
		v := quick(t, "mc7", string(scheme)+", loss")
		of := func(loss string) float64 { return v[[2]string{string(scheme), loss}].Value }
		if clean, some, more := of("0"), of("1/4096"), of("1/1024"); clean < 80 || some >= clean || some < 0.9*clean || more >= some {
			t.Errorf("%s: %.1f Gb/s without loss, %.1f with 1/4096, %.1f with 1/1024", scheme, clean, some, more)
		}
	}
}

// TestFigure9: an iteration takes no less than the links need, and least with multicast.
func TestFigure9(t *testing.T) {
	v := quick(t, "mc9", "racks of 3, 8 MB")
	of := func(s replicate.Scheme) float64 { return v[[2]string{string(s) + ", racks of 3", "8 MB"}].Value }
	const in, out = 6 * 8 * 8 / 100., 8 * 8 / 100. // ms, of 6 messages and of one, without headers
	if m := of(replicate.Multicast); m < in+out {
		t.Errorf("multicast takes %.2f ms, and the links %.2f", m, in+out)
	}
	for _, s := range []replicate.Scheme{replicate.Chain, replicate.Fanout} {
		if m := of(s); m < 2*in || m <= of(replicate.Multicast) {
			t.Errorf("%s takes %.2f ms, multicast %.2f", s, m, of(replicate.Multicast))
		}
	}
}

// TestTable1: the binomial pipeline takes little more than the link does for one copy, fan-out three times that.
func TestTable1(t *testing.T) {
	v := quick(t, "rdmc1", "")
	of := func(s replicate.Scheme) float64 { return v[[2]string{string(s), "until all have it"}].Value }
	one := float64(32<<20*8) / most(stampede()) * 1e3
	near(t, "multicast", of(replicate.Multicast), one, 0.01)
	near(t, "fan-out", of(replicate.Fanout), 3*one, 0.01)
	near(t, "pipeline", of(replicate.RDMC), one, 0.07)
}

// TestFabrics: both readings of figure 8's fabric have 54 hosts, and paths of six links at most.
func TestFabrics(t *testing.T) {
	for racks, switches := range map[int]int{3: 18 + 18 + 9, 1: 6 + 18 + 9} {
		topo, err := FatTree(racks, false)
		if err != nil {
			t.Fatal(err)
		}
		if len(topo.Hosts) != 54 || len(topo.Switches) != switches {
			t.Errorf("%d racks in a pod: %d hosts, %d switches", racks, len(topo.Hosts), len(topo.Switches))
		}
		tor := topo.Node(topo.Node("h0").Ports[0].To.Name)
		if hops := topo.HopsTo(tor, topo.Node("h53"), nil); len(hops) != 3 {
			t.Errorf("%d racks in a pod: %d next hops to another pod, want 3", racks, len(hops))
		}
	}
}

// TestRacksApart: copies to three racks behind a switch that only routes leave by three of the four links to it,
// so that the group gets the line.
func TestRacksApart(t *testing.T) {
	w, err := newTestbed(testbed(), 4, Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	share := w.between(time.Millisecond, 3*time.Millisecond, unending(w.group("A1", "C1", "A2", "C2")))
	if w.err != nil {
		t.Fatal(w.err)
	}
	near(t, "share of the line", share[0], 1, 0.02)
}

// TestNoAllocations: packets cost no allocation where there are equal paths, either.
func TestNoAllocations(t *testing.T) {
	topo, err := FatTree(3, true)
	if err != nil {
		t.Fatal(err)
	}
	s, err := simnet.New(topo, fatTree(), 1)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Sim: s}
	for i := range 9 {
		unending(w.group(fmt.Sprint("h", i), fmt.Sprint("h", 9+i), fmt.Sprint("h", 18+i), fmt.Sprint("h", 27+i)))
		unending(w.connect(fmt.Sprint("h", 36+i), fmt.Sprint("h", 45+i%3)))
	}
	w.Run(3 * time.Millisecond)
	if n := testing.AllocsPerRun(5, func() { w.Run(w.Now() + 100*time.Microsecond) }); n != 0 || w.err != nil {
		t.Errorf("%v allocations in 100 µs; %v", n, w.err)
	}
}
