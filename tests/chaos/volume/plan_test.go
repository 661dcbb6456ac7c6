package volume

import (
	"slices"
	"testing"
)

// TestPlans: a seed always gives the same plan, each kind of fault occurs, and a plan has what its
// faults need.
func TestPlans(t *testing.T) {
	drawn := map[What]int{}
	plans := Rows()
	for seed := range uint64(500) {
		p := Of(seed)
		if p.String() != Make(seed).String() {
			t.Fatalf("seed %d is two plans", seed)
		}
		plans = append(plans, p)
		for _, f := range p.Faults {
			drawn[f.What]++
		}
	}
	for _, k := range kinds {
		if drawn[k] < 10 {
			t.Errorf("%q is drawn %d times", k, drawn[k])
		}
	}
	for _, p := range plans {
		if Of(p.Seed).String() != p.String() || p.MinSize < 1 || p.MinSize > 2 || len(p.Faults) == 0 {
			t.Errorf("%v", p)
		}
		for _, f := range p.Faults {
			if f.What.onEtcd() && !p.OwnEtcd || f.For <= 0 || f.At >= p.Work || (f.Node == "") != slices.Contains([]What{AllPower, KillAll, KillAgent, StopAgent, KillSwitch, StopSwitch, EtcdAway}, f.What) {
				t.Errorf("%s: %v", p.Name(), f)
			}
		}
	}
}
