package plan

import (
	"math/rand/v2"
	"slices"
	"time"
)

// further has the plan have faults of clocks and of states as well, with numbers of
// their own: the others are the same without them.
func (p *Plan) further(rng *rand.Rand) {
	if rng.IntN(4) == 0 {
		return
	}
	if rng.IntN(3) == 0 {
		p.Faults = nil
	}
	for range 1 + rng.IntN(2) {
		for _, f := range p.makeFurther(rng) {
			// A process that one fault starts again must not be ended by another meanwhile:
			// it would not become ready, and no promise says that it does.
			if !f.restarts() || !slices.ContainsFunc(p.Faults, func(o Fault) bool { return o.Node == f.Node && o.restarts() }) {
				p.Faults = append(p.Faults, f)
			}
		}
	}
}

// restarts says whether a daemon, an agent or its switch is ended, and started again.
func (f Fault) restarts() bool {
	return slices.Contains([]What{KillDaemon, WarpDaemon, KillAgent, WarpAgent, KillSwitch, StopSwitch, OldState, FullDisk, KillAtWrite}, f.What)
}

// jumps of clocks, either way.
var jumps = []time.Duration{100 * ms, time.Second, 10 * time.Second, time.Hour, 72 * time.Hour}

// makeFurther makes a fault, and one more if it needs something to happen.
func (p *Plan) makeFurther(rng *rand.Rand) []Fault {
	f := Fault{What: []What{SetClock, OldState, FullDisk, KillAtWrite, KillAtWrite}[rng.IntN(5)], Node: p.host(rng),
		At: between(rng, 200*ms, p.Work*3/4), For: between(rng, 50*ms, 2000*ms)}
	if rng.IntN(3) == 0 {
		f.Node = p.Switches()[rng.IntN(len(p.Switches()))]
	}
	switch f.What {
	case SetClock:
		f.By, f.N = jumps[rng.IntN(len(jumps))], 1
		if rng.IntN(2) == 0 {
			f.By = -f.By
		}
		if rng.IntN(3) == 0 {
			f.For = 0
		}
		if rng.IntN(3) == 0 && f.By.Abs() <= time.Second {
			f.N, f.For = 1+int((p.Work-f.At)/Between)/2, 0
		}
	case OldState:
		f.Copied = BeforeGroups
		if rng.IntN(2) == 0 {
			f.Copied = between(rng, 0, f.At)
		}
	case KillAtWrite:
		f.At = between(rng, 0, p.Work/2)
		f.N = 1 + rng.IntN(8)
		f.Hold = []time.Duration{0, 0, 20 * ms, 200 * ms}[rng.IntN(4)]
	}
	if f.What == SetClock && f.N > 1 || f.What == KillAtWrite || f.What == FullDisk {
		if g := p.groupOf(f.Node); g != nil {
			return []Fault{f, {What: KillApp, Node: g.Receivers[rng.IntN(len(g.Receivers))], At: f.At + between(rng, 0, 200*ms)}}
		}
	}
	return []Fault{f}
}

// groupOf is a group that a node has to do with; nil: none.
func (p *Plan) groupOf(node string) *Group {
	for i := range p.Groups {
		g := &p.Groups[i]
		if g.Sender == node || slices.Contains(g.Receivers, node) || p.ToR(g.Sender) == node {
			return g
		}
	}
	return nil
}
