package plan

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

// Plans are valid, and many of them have everything.
func TestMake(t *testing.T) {
	faults, racks, receivers, modes, kinds := map[What]int{}, map[int]int{}, map[int]int{}, map[string]int{}, map[string]int{}
	for seed := range uint64(2000) {
		p := Make(seed)
		if !reflect.DeepEqual(p, Make(seed)) {
			t.Fatalf("seed %d makes two plans", seed)
		}
		racks[len(p.Racks)]++
		for _, g := range p.Groups {
			receivers[len(g.Receivers)]++
			modes[g.Mode]++
			for _, k := range g.Kinds {
				kinds[k]++
			}
			if slices.Contains(g.Receivers, g.Sender) || g.MinSize > 1+len(g.Receivers) || g.Largest > slices.Min(g.Regions) {
				t.Fatalf("seed %d: %+v", seed, g)
			}
		}
		if !slices.IsSortedFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) }) {
			t.Fatalf("seed %d: faults out of order: %v", seed, p)
		}
		for _, f := range p.Faults {
			faults[f.What]++
			if f.What == OldState && f.Copied > f.At || f.What == SetClock && (f.N < 1 || f.By == 0) || f.What == KillAtWrite && (f.N < 1 || f.For == 0) {
				t.Fatalf("seed %d: %v", seed, f)
			}
			if f.At > p.Work || f.For > 2*time.Second || !slices.Contains(append(p.Hosts(), p.Switches()...), f.Node) {
				t.Fatalf("seed %d: %v", seed, f)
			}
		}
	}
	for _, w := range []What{KillApp, StopApp, KillDaemon, StopDaemon, WarpDaemon, KillAgent, StopAgent, WarpAgent, KillSwitch, StopSwitch,
		Cut, Loss, Reorder, Corrupt, Slow, SetClock, OldState, FullDisk, KillAtWrite} {
		if faults[w] < 50 {
			t.Errorf("only %d × %s", faults[w], w)
		}
	}
	for n := 1; n <= 4; n++ {
		if receivers[n] < 100 {
			t.Errorf("only %d groups of %d", receivers[n], n)
		}
	}
	if racks[1] < 300 || racks[2] < 300 || modes["off"] < 100 || modes["auto"] < 300 || modes["require"] < 300 || len(kinds) != 4 {
		t.Errorf("racks %v, modes %v, kinds %v", racks, modes, kinds)
	}
}

// Rows have unique numbers and names, and what they need.
func TestRows(t *testing.T) {
	names := map[string]bool{}
	for i, p := range Rows() {
		names[p.Name()] = true
		if !reflect.DeepEqual(Of(FirstRow+uint64(i)), p) { //nolint:gosec // not negative
			t.Errorf("%s is not number %d", p.Name(), i)
		}
		for _, f := range p.Faults {
			if !slices.Contains(append(p.Hosts(), p.Switches()...), f.Node) || f.At > p.Work {
				t.Errorf("%s: %v", p.Name(), f)
			}
		}
	}
	if len(names) != len(Rows()) || names["seed 1"] || Of(7).Name() != "seed 7" {
		t.Errorf("names %v", names)
	}
}

func TestBlame(t *testing.T) {
	p := &Plan{Racks: []int{2, 3}}
	g := &Group{Sender: "h1", Receivers: []string{"h2", "h3", "h4"}}
	for _, c := range []struct {
		fault  Fault
		who    []string
		doomed bool
	}{
		{Fault{What: KillApp, Node: "h3"}, []string{"h3"}, false},
		{Fault{What: KillApp, Node: "h5"}, nil, false},
		{Fault{What: KillAgent, Node: "torB"}, []string{"h3", "h4"}, false},
		{Fault{What: WarpAgent, Node: "torA"}, []string{"h3", "h4"}, false},
		{Fault{What: WarpDaemon, Node: "h3"}, nil, false},
		{Fault{What: StopSwitch, Node: "torB"}, []string{"h3", "h4"}, false},
		{Fault{What: KillSwitch, Node: "torA"}, []string{"h2", "h3", "h4"}, true},
		{Fault{What: KillSwitch, Node: "spine"}, []string{"h3", "h4"}, false},
		{Fault{What: Cut, Node: "torA", Other: "spine"}, []string{"h3", "h4"}, false},
		{Fault{What: Cut, Node: "torB", Other: "spine"}, []string{"h3", "h4"}, false},
		{Fault{What: Loss, Node: "h2", Other: "torA"}, []string{"h2"}, false},
		{Fault{What: Loss, Node: "h4", Other: "torB"}, []string{"h4"}, false},
		{Fault{What: Cut, Node: "h5", Other: "torB"}, nil, false},
		{Fault{What: Cut, Node: "h1", Other: "torA"}, []string{"h2", "h3", "h4"}, true},
		{Fault{What: StopApp, Node: "h1"}, nil, true},
		{Fault{What: SetClock, Node: "h1"}, nil, false},
		{Fault{What: SetClock, Node: "h3"}, nil, false},
		{Fault{What: SetClock, Node: "torA"}, nil, false},
		{Fault{What: OldState, Node: "h3"}, []string{"h3"}, false},
		{Fault{What: OldState, Node: "h1"}, nil, true},
		{Fault{What: OldState, Node: "torA"}, []string{"h3", "h4"}, false},
		{Fault{What: FullDisk, Node: "h1"}, nil, true},
		{Fault{What: FullDisk, Node: "torB"}, []string{"h3", "h4"}, false},
		{Fault{What: KillAtWrite, Node: "h1"}, nil, false},
		{Fault{What: KillAtWrite, Node: "h4"}, []string{"h4"}, false},
	} {
		p.Faults = []Fault{c.fault}
		if who, doomed := p.Blame(g); !slices.Equal(who, c.who) || doomed != c.doomed {
			t.Errorf("%v: %v may be removed, doomed %v", c.fault, who, doomed)
		}
	}
}
