package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// racks are the possible racks.
var racks = [][]int{{2}, {3}, {4}, {5}, {2, 2}, {3, 2}, {2, 3}, {1, 3}, {1, 4}}

// Make generates a plan.
func Make(seed uint64) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x6d6372646d61))
	p := &Plan{Seed: seed, Racks: racks[rng.IntN(len(racks))], Work: between(rng, 2000*ms, 4000*ms)}
	hosts := p.Hosts()
	for i := range 1 + rng.IntN(3)*rng.IntN(2) {
		p.Groups = append(p.Groups, makeGroup(rng, i, hosts))
	}
	for range 1 + rng.IntN(3) {
		p.Faults = append(p.Faults, p.makeFault(rng))
	}
	p.further(rand.New(rand.NewPCG(seed, 0x66757274686572)))
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
	return p
}

func makeGroup(rng *rand.Rand, i int, hosts []string) Group {
	order := slices.Clone(hosts)
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	if rng.IntN(4) > 0 { // mostly h1 sends, so that other groups share its outcome
		at := slices.Index(order, "h1")
		order[0], order[at] = order[at], order[0]
	}
	n := 1 + rng.IntN(min(4, len(order)-1))
	if rng.IntN(2) == 0 {
		n = min(4, len(order)-1)
	}
	g := Group{Name: fmt.Sprint("g", i+1), Key: rng.Uint64(), Sender: order[0], Receivers: order[1 : 1+n],
		Mode: []string{"require", "require", "auto", "auto", "off"}[rng.IntN(5)], Depth: []int{1, 2, 4, 16}[rng.IntN(4)]}
	switch rng.IntN(4) {
	case 0: // by default
	case 1:
		g.MinSize = 1 + n
	default:
		g.MinSize = 1 + rng.IntN(2)
	}
	for range 1 + rng.IntN(2) {
		g.Regions = append(g.Regions, []int{64 << 10, 1 << 20, 4 << 20}[rng.IntN(3)])
	}
	g.Kinds = [][]string{{"write"}, {"write"}, {"write", "writeimm"}, {"send"}, {"send", "sendimm"},
		{"write", "writeimm", "send", "sendimm"}, {"write", "writeimm", "send", "sendimm"}}[rng.IntN(7)]
	g.Largest = min([]int{64, 4096, 64 << 10, 1 << 20}[rng.IntN(4)], slices.Min(g.Regions))
	if rng.IntN(2) == 0 {
		g.Pause = []time.Duration{ms / 2, 2 * ms, 20 * ms}[rng.IntN(3)]
	}
	if rest := order[1+n:]; len(rest) > 0 {
		g.Spare = rest[0]
	}
	if g.Mode == "off" && rng.IntN(2) == 0 {
		g.Transport = []string{"tcp", "rdma"}[rng.IntN(2)]
	}
	return g
}

func (p *Plan) makeFault(rng *rand.Rand) Fault {
	f := Fault{What: kinds[rng.IntN(len(kinds))], At: between(rng, 200*ms, p.Work*3/4), For: between(rng, 50*ms, 2000*ms)}
	switch {
	case f.What.OnLink():
		f.Node = p.host(rng)
		f.Other = p.ToR(f.Node)
		if len(p.Racks) > 1 && rng.IntN(3) == 0 {
			f.Node, f.Other = []string{"torA", "torB"}[rng.IntN(2)], "spine"
		}
	case slices.Contains([]What{KillAgent, StopAgent, WarpAgent, KillSwitch, StopSwitch}, f.What):
		f.Node = p.Switches()[rng.IntN(len(p.Switches()))]
	default:
		f.Node = p.host(rng)
	}
	switch f.What {
	case Loss:
		f.Share = []float64{0.01, 0.05, 0.3}[rng.IntN(3)]
	case Reorder, Corrupt:
		f.Share = []float64{0.001, 0.01, 0.05}[rng.IntN(3)]
	case Slow:
		f.Rate = []uint64{5e6, 20e6, 100e6}[rng.IntN(3)]
	case KillApp, KillDaemon, KillAgent, Cut:
		if rng.IntN(3) == 0 {
			f.For = 0
		}
	}
	return f
}

// host returns a host of a group.
func (p *Plan) host(rng *rand.Rand) string {
	g := p.Groups[rng.IntN(len(p.Groups))]
	if rng.IntN(4) == 0 {
		return g.Sender
	}
	return g.Receivers[rng.IntN(len(g.Receivers))]
}

func between(rng *rand.Rand, a, b time.Duration) time.Duration {
	return (a + time.Duration(rng.Int64N(int64(b-a+1)))).Truncate(ms)
}

// further adds faults of clocks and of states to the plan, from a random source of their own: the
// other faults are the same with and without.
func (p *Plan) further(rng *rand.Rand) {
	if rng.IntN(4) == 0 {
		return
	}
	if rng.IntN(3) == 0 {
		p.Faults = nil
	}
	for range 1 + rng.IntN(2) {
		for _, f := range p.makeFurther(rng) {
			// A fault must not end a process that another one has just restarted: it would not
			// become ready, and no promise says that it does.
			if !f.restarts() || !slices.ContainsFunc(p.Faults, func(o Fault) bool { return o.Node == f.Node && o.restarts() }) {
				p.Faults = append(p.Faults, f)
			}
		}
	}
}

// restarts reports whether a fault ends and restarts a daemon, an agent or its switch.
func (f Fault) restarts() bool {
	return slices.Contains([]What{KillDaemon, WarpDaemon, KillAgent, WarpAgent, KillSwitch, StopSwitch, OldState, FullDisk, KillAtWrite}, f.What)
}

// jumps of clocks, either way.
var jumps = []time.Duration{100 * ms, time.Second, 10 * time.Second, time.Hour, 72 * time.Hour}

// makeFurther makes a fault, and one more that it needs.
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

// groupOf returns a group that a node takes part in; nil: none.
func (p *Plan) groupOf(node string) *Group {
	for i := range p.Groups {
		g := &p.Groups[i]
		if g.Sender == node || slices.Contains(g.Receivers, node) || p.ToR(g.Sender) == node {
			return g
		}
	}
	return nil
}
