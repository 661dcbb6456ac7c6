package volume

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/tests/chaos/plan"
)

// A Plan is one run.
type Plan struct {
	Seed       uint64
	Blocks     int
	Clients    int
	MinSize    int
	Fast       bool // the shorter timeouts
	HostsRelay bool // the switch copies nothing
	OwnEtcd    bool // in separate processes, on the management network
	Lying      bool // all disks report syncs, and have not synced since the work began
	Work       time.Duration
	Faults     []Fault
}

// A What is a kind of fault.
type What string

// The faults. Frozen processes get SIGSTOP, killed ones SIGKILL; both continue or restart after a
// time.
const (
	KillBlock   What = "kill mcblock"
	FreezeBlock What = "freeze mcblock"
	KillAll     What = "kill all mcblocks"
	PowerLoss   What = "power loss" // mcblock and daemon are killed, and their unsynced data is lost
	AllPower    What = "power loss of all"
	KillDaemon  What = "kill daemon"
	StopDaemon  What = "freeze daemon"
	KillAgent   What = "kill agent"
	StopAgent   What = "freeze agent"
	KillSwitch  What = "kill switch"
	StopSwitch  What = "freeze switch"
	Cut         What = "cut cable"
	KillEtcd    What = "kill etcd" // one member, with etcd in processes of its own
	StopEtcd    What = "freeze etcd"
	EtcdAway    What = "etcd away"  // all members are frozen
	ClockBack   What = "clock back" // by an hour: CLOCK_REALTIME of all programs of a host jumps, and jumps back at the end
	ClockAhead  What = "clock ahead"
)

// Nodes that are determined when the fault is due. Other nodes are hosts, such as h2, or members of
// etcd, such as e2.
const (
	Primary = "primary" // the host of the primary
	Replica = "replica" // another one of the acting set
)

// A Fault is one.
type Fault struct {
	What What
	Node string // "": there is only one
	At   time.Duration
	For  time.Duration
}

func (f Fault) String() string {
	return strings.ReplaceAll(fmt.Sprintf("%5d ms: %s %s, for %d ms", f.At.Milliseconds(), f.What, f.Node, f.For.Milliseconds()), " ,", ",")
}

func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d blocks, %d clients, min_size %d, fast %v, hosts relay %v, etcd of its own %v, %v of work\n",
		p.Name(), p.Blocks, p.Clients, p.MinSize, p.Fast, p.HostsRelay, p.OwnEtcd, p.Work)
	for _, f := range p.Faults {
		fmt.Fprintf(&b, "  %v\n", f)
	}
	return b.String()
}

// Name returns the name of a number: "row 3", or "seed 17".
func (p *Plan) Name() string {
	if p.Seed >= plan.FirstRow {
		return fmt.Sprint("row ", p.Seed-plan.FirstRow+1)
	}
	return fmt.Sprint("seed ", p.Seed)
}

const ms = time.Millisecond

var kinds = []What{KillBlock, KillBlock, KillBlock, FreezeBlock, FreezeBlock, KillAll, PowerLoss, PowerLoss, AllPower, AllPower, KillDaemon, StopDaemon,
	KillAgent, StopAgent, KillSwitch, StopSwitch, Cut, Cut, KillEtcd, StopEtcd, EtcdAway}

// Make generates a plan.
func Make(seed uint64) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x766f6c756d65))
	p := &Plan{Seed: seed, Blocks: 2 + rng.IntN(7), Clients: 2 + rng.IntN(4), MinSize: 1 + (1+rng.IntN(3))/2, Fast: rng.IntN(3) == 0, HostsRelay: rng.IntN(3) == 0,
		OwnEtcd: rng.IntN(2) == 0, Work: between(rng, 4000*ms, 7000*ms)}
	for range 1 + rng.IntN(4) {
		f := Fault{What: kinds[rng.IntN(len(kinds))], At: between(rng, 500*ms, p.Work*3/4), For: between(rng, 50*ms, 3000*ms)}
		switch f.What {
		case KillEtcd, StopEtcd:
			f.Node = fmt.Sprint("e", 1+rng.IntN(3))
		case KillBlock, FreezeBlock, PowerLoss, KillDaemon, StopDaemon, Cut:
			f.Node = []string{Primary, Replica, "h1", "h2", "h3"}[rng.IntN(5)]
		}
		if f.What.onEtcd() && !p.OwnEtcd {
			f.What, f.Node = FreezeBlock, Replica
		}
		p.Faults = append(p.Faults, f)
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
	return p
}

func (w What) onEtcd() bool { return slices.Contains([]What{KillEtcd, StopEtcd, EtcdAway}, w) }

func between(rng *rand.Rand, a, b time.Duration) time.Duration {
	return (a + time.Duration(rng.Int64N(int64(b-a+1)))).Truncate(ms)
}

// Rows are fixed plans.
func Rows() []*Plan {
	var rows []*Plan
	add := func(p Plan) {
		p.Seed = plan.FirstRow + uint64(len(rows))
		p.Blocks, p.Clients = 4, 3
		rows = append(rows, &p)
	}
	// The process of each role is frozen for longer than all leases, and thawed: it serves no old
	// data.
	for _, node := range []string{Primary, Replica} {
		add(Plan{MinSize: 2, Work: 6000 * ms, Faults: []Fault{{FreezeBlock, node, 1000 * ms, 3500 * ms}}})
		add(Plan{MinSize: 2, OwnEtcd: true, Fast: true, Work: 4000 * ms, Faults: []Fault{{FreezeBlock, node, 1000 * ms, 2000 * ms}}})
	}
	// One after another, until each has died once, with and without switches that copy.
	for _, relay := range []bool{false, true} {
		add(Plan{MinSize: 2, HostsRelay: relay, OwnEtcd: relay, Work: 9000 * ms, Faults: []Fault{{KillBlock, "h1", 1000 * ms, 500 * ms}, {KillBlock, "h2", 4000 * ms, 500 * ms}, {KillBlock, "h3", 7000 * ms, 500 * ms}}})
	}
	// All lose power at once, or one after another until one is left, which continues alone, and
	// loses power too.
	add(Plan{MinSize: 2, OwnEtcd: true, Work: 4000 * ms, Faults: []Fault{{AllPower, "", 2000 * ms, 100 * ms}}})
	add(Plan{MinSize: 1, OwnEtcd: true, Work: 7000 * ms, Faults: []Fault{{PowerLoss, "h1", 1000 * ms, 5000 * ms}, {PowerLoss, "h2", 3500 * ms, 2500 * ms}, {PowerLoss, "h3", 6000 * ms, 100 * ms}}})
	// One member of etcd, two, and all.
	add(Plan{MinSize: 2, OwnEtcd: true, Work: 6000 * ms, Faults: []Fault{{KillEtcd, "e1", 1000 * ms, 3000 * ms}, {StopEtcd, "e2", 2000 * ms, 1000 * ms}, {KillBlock, Replica, 2500 * ms, 500 * ms}}})
	add(Plan{MinSize: 2, OwnEtcd: true, Work: 62_000 * ms, Faults: []Fault{{EtcdAway, "", 1000 * ms, 60_000 * ms}}})
	// Clocks jump, of each host and in each direction, and nothing else happens; and hosts with
	// wrong clocks are killed.
	jumps := []Fault{{ClockBack, "h1", 500 * ms, 1500 * ms}, {ClockAhead, "h2", 1000 * ms, 2000 * ms}, {ClockBack, "h3", 1500 * ms, 1000 * ms},
		{ClockAhead, "h1", 3000 * ms, 2000 * ms}, {ClockBack, "h2", 3500 * ms, 1500 * ms}, {ClockAhead, "h3", 4000 * ms, 1000 * ms}}
	add(Plan{MinSize: 2, Work: 6000 * ms, Faults: jumps})
	add(Plan{MinSize: 2, Work: 9000 * ms, Faults: []Fault{{ClockBack, "h1", 500 * ms, 5500 * ms}, {ClockAhead, "h2", 700 * ms, 7300 * ms}, {KillBlock, "h1", 1000 * ms, 500 * ms}, {KillBlock, "h2", 4000 * ms, 500 * ms}}})
	return rows
}

// Of returns the plan of a row, or of a seed.
func Of(number uint64) *Plan {
	if rows := Rows(); number >= plan.FirstRow && number < plan.FirstRow+uint64(len(rows)) {
		return rows[number-plan.FirstRow]
	}
	return Make(number)
}

// Liar is a plan whose disks lie and lose power: flushed data may be lost.
func Liar(seed uint64) *Plan {
	return &Plan{Seed: seed, Blocks: 4, Clients: 3, MinSize: 2, OwnEtcd: true, Lying: true, Work: 3000 * ms, Faults: []Fault{{AllPower, "", 2000 * ms, 100 * ms}}}
}

// Quiet reports whether nothing in the plan may delay a client: only etcd is away, or clocks jump.
func (p *Plan) Quiet() bool {
	return !slices.ContainsFunc(p.Faults, func(f Fault) bool { return !f.What.onEtcd() && !f.What.onClock() })
}

func (w What) onClock() bool { return w == ClockBack || w == ClockAhead }

// SetsClocks reports whether the programs need clocks that can be set.
func (p *Plan) SetsClocks() bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.What.onClock() })
}

// LosesPower reports whether unsynced data must be tracked.
func (p *Plan) LosesPower() bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.What == PowerLoss || f.What == AllPower })
}
