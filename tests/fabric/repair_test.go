package fabric

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// wireOf finds a wire between a switch and another that packets of a group cross,
// and which of them sends them.
func wireOf(f *Fabric, w *Walk, sw string) (wire *Wire, from string) {
	for _, wire := range f.wires {
		switch {
		case wire.B.Port == 0 || wire.A.Node != sw && wire.B.Node != sw:
		case w.Crossed[Hop{wire.A, wire.B.Node}] > 0:
			return wire, wire.A.Node
		case w.Crossed[Hop{wire.B, wire.A.Node}] > 0:
			return wire, wire.B.Node
		}
	}
	return nil, ""
}

// A repairCase is a group in a fabric whose wires are cut.
type repairCase struct {
	name  string
	spec  Spec
	hosts []string // the sender first
	at    []string // cut wires of these switches, in turn
}

// TestRepair cuts a wire that a group's packets cross, waits until the group is
// right again, and mends it.
func TestRepair(t *testing.T) {
	repair(t, repairCase{"leafspine", LeafSpine(3, 2, 2), []string{"h1-1", "h1-2", "h2-1", "h3-1"}, []string{"leaf1", "leaf2", "leaf3"}})
}

func TestRepairWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, long)
	figure3, fattree := Figure3(), FatTree(4)
	figure3.Hello, fattree.Hello = quickHello, 2*quickHello // 20 switches and agents want the processor at once
	repair(t,
		repairCase{"figure3", figure3, []string{"A1", "A2", "B1", "D1"}, []string{"torA", "core", "torD"}},
		repairCase{"fattree", fattree, []string{"h1-1-1", "h1-2-1", "h2-1-1", "h3-1-1", "h3-2-2", "h4-1-2"},
			[]string{"edge1-1", "core1", "core2", "core3", "core4", "edge3-1", "edge4-1"}})
}

func repair(t *testing.T, cases ...repairCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := Start(t, c.spec)
			g := f.Group(c.hosts[0], c.hosts[1:]...)
			f.Install(g)
			f.CheckDelivery(g)
			var noticed, repaired, outage []time.Duration
			twice := 0 // while a tree changes, two branches may reach the same receiver
			for i, sw := range c.at {
				const flow = 3
				w, from := wireOf(f, f.Walk(g, flow), sw)
				if w == nil {
					continue // equal-cost paths passed it by
				}
				oneWay := i%3 == 2
				p := f.Probe(g, flow, 2*time.Millisecond)
				f.pause(20 * time.Millisecond)
				cut := time.Now()
				if oneWay {
					f.CutOneWay(from, w)
				} else {
					f.Cut(w)
				}
				f.Links()
				f.Converged()
				f.Repaired(g)
				o := p.Stop()
				repaired = append(repaired, o.Last.Sub(cut))
				if !oneWay { // else the state of one end changes once more
					noticed = append(noticed, f.Noticed(w).Sub(cut))
				}
				outage = append(outage, o.Longest)
				twice += o.Duplicates
				if o.Lost == 0 || o.Strays > 0 {
					t.Errorf("%v cut: of %d packets %d lost (%v), %d come to other hosts", w, o.Sent, o.Lost, o.Longest, o.Strays)
				}
				f.CheckTrees(patience) // until then, two branches may still reach the same receiver
				f.CheckDelivery(g)
				f.CheckAcks(g)

				mended, dropped := time.Now(), f.dropped()
				p = f.Probe(g, flow, 2*time.Millisecond)
				f.pause(20 * time.Millisecond)
				f.Mend(w)
				f.Links()
				f.Converged()
				f.Repaired(g)
				o = p.Stop()
				twice += o.Duplicates
				if others := f.Flapped(mended, w); len(others) > 0 {
					t.Logf("%v mended: %d other links flapped, as the machine is too busy", w, len(others))
				} else if o.Lost > 0 || o.Strays > 0 {
					t.Errorf("%v mended: of %d packets %d lost at %v (%v, the last at %v), %d come to other hosts; dropped since: %s", w, o.Sent, o.Lost, o.Losers, o.Longest, o.Last, o.Strays, more(dropped, f.dropped()))
				}
				f.CheckTrees(patience) // until then, two branches may still reach the same receiver
				f.CheckDelivery(g)
				f.CheckAcks(g)
			}
			t.Logf("%d wires cut; noticed at both ends after %s; nothing arrived for %s; the last packet was lost after %s; %d copies too many",
				len(outage), spread(noticed), spread(outage), spread(repaired), twice)
			if len(outage) < 2 {
				t.Error("hardly any wire was cut")
			}
			f.Remove(g)
			f.CheckLeftovers(0)
		})
	}
}

// dropped is how many packets the switches have dropped, by switch and reason.
func (f *Fabric) dropped() map[string]uint64 {
	out := map[string]uint64{}
	for _, sw := range f.Switches(func(Switch) bool { return true }) {
		res, err := f.Status(sw).GetCounters(f.t.Context(), &mcrdmav1.GetCountersRequest{})
		if err != nil {
			f.t.Fatal(err)
		}
		for _, c := range res.GetCounters() {
			if strings.HasSuffix(c.GetName(), ".drops") {
				out[fmt.Sprintf("%s %s %s", sw, c.GetName(), c.GetCell())] = c.GetPackets()
			}
		}
		st := f.node(sw).embedded.Stats()
		out[sw+" no group"], out[sw+" no port"] = st.Pipeline.NoGroup, st.NoPort
		for _, p := range st.Ports {
			for reason, n := range p.Drops {
				out[fmt.Sprintf("%s port %d %s", sw, p.Number, reason)] = n
			}
		}
	}
	return out
}

// more says what has been counted between two times.
func more(before, after map[string]uint64) string {
	var list []string
	for k, n := range after {
		if n > before[k] {
			list = append(list, fmt.Sprintf("%s %d", k, n-before[k]))
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// spread is the least, the middle and the largest.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "never"
	}
	slices.Sort(d)
	r := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("%v/%v/%v", r(d[0]), r(d[len(d)/2]), r(d[len(d)-1]))
}
