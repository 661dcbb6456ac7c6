// Package plan generates the events of a run of the fault matrix: a lab, groups with their work,
// and faults, all from a seed. It is pure.
package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Plan is one run.
type Plan struct {
	Seed   uint64
	Racks  []int
	Work   time.Duration // how long operations are submitted
	Groups []Group
	Faults []Fault
}

// A Group is a group, with the work of its sender.
type Group struct {
	Name      string   `json:"name"` // and that of the service
	Key       uint64   `json:"key"`  // of the written data
	Sender    string   `json:"sender"`
	Receivers []string `json:"receivers"`
	Mode      string   `json:"mode"`
	MinSize   int      `json:"min_size"`
	Regions   []int    `json:"regions"`
	Kinds     []string `json:"kinds"`
	Largest   int      `json:"largest"` // bytes of an operation
	Depth     int      `json:"depth"`
	Transport string   `json:"transport,omitempty"`
	// Pause is the maximum time between two operations.
	Pause time.Duration `json:"pause,omitempty"`
	// Spare is added when a receiver has been removed; empty: none.
	Spare string `json:"spare,omitempty"`
}

// All returns the receivers and the spare.
func (g *Group) All() []string {
	if g.Spare == "" {
		return g.Receivers
	}
	return append(slices.Clone(g.Receivers), g.Spare)
}

// A What is a kind of fault.
type What string

// The faults. Those of processes have a host or a switch, the others the link between two nodes.
const (
	KillApp    What = "kill app"    // SIGKILL; another starts after the time
	StopApp    What = "stop app"    // SIGSTOP, and SIGCONT after the time
	KillDaemon What = "kill daemon" // started again after the time
	StopDaemon What = "stop daemon"
	WarpDaemon What = "warp daemon" // like KillDaemon; its clocks have jumped
	KillAgent  What = "kill agent"
	StopAgent  What = "stop agent"
	WarpAgent  What = "warp agent"
	KillSwitch What = "kill switch"
	StopSwitch What = "stop switch"
	Cut        What = "cut"
	Loss       What = "loss"
	Reorder    What = "reorder"
	Corrupt    What = "corrupt"
	Slow       What = "slow"

	SetClock    What = "set clock"     // of a host or a switch: CLOCK_REALTIME jumps
	OldState    What = "old state"     // a daemon or an agent is killed, and restarted with an older copy of its state
	FullDisk    What = "full disk"     // the disk with a daemon's or an agent's state; it is restarted when there is space
	KillAtWrite What = "kill at write" // a daemon or an agent, before one of its durable writes
)

// OnLink reports whether the fault is on a link.
func (w What) OnLink() bool { return slices.Contains([]What{Cut, Loss, Reorder, Corrupt, Slow}, w) }

// A Fault is one.
type Fault struct {
	What What
	At   time.Duration // since the beginning of the work
	For  time.Duration // until it is undone; 0: never
	// Node is the host or switch of the fault. Other is the other end of a link.
	Node, Other string
	Share       float64 // of frames, for Loss, Reorder and Corrupt
	Rate        uint64  // bits per second, for Slow

	By     time.Duration // how far the clock jumps, for SetClock
	N      int           // for SetClock: the number of jumps; for KillAtWrite: before the N-th write
	Hold   time.Duration // for KillAtWrite: how long that write has taken by then
	Copied time.Duration // for OldState: when the copy was made; BeforeGroups: before any group
}

// BeforeGroups is the time of a copy without groups.
const BeforeGroups = -time.Nanosecond

// Between are the pauses between jumps of a clock.
const Between = 5 * ms

func (f Fault) String() string {
	s := fmt.Sprintf("%4d ms: %s of %s", f.At.Milliseconds(), f.What, f.Node)
	if f.Other != "" {
		s += "–" + f.Other
	}
	switch {
	case f.Share > 0:
		s += fmt.Sprintf(", %.1f %%", 100*f.Share)
	case f.Rate > 0:
		s += fmt.Sprintf(", %d Mb/s", f.Rate/1e6)
	case f.What == SetClock:
		s += fmt.Sprintf(", %d × %v", f.N, f.By)
	case f.What == KillAtWrite:
		s += fmt.Sprintf(", number %d, after %d ms", f.N, f.Hold.Milliseconds())
	case f.What == OldState && f.Copied == BeforeGroups:
		s += ", from before the groups"
	case f.What == OldState:
		s += fmt.Sprintf(", from %d ms", f.Copied.Milliseconds())
	}
	if f.For == 0 {
		return s + ", for good"
	}
	return s + fmt.Sprintf(", for %d ms", f.For.Milliseconds())
}

func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: racks of %v hosts, %v of work\n", p.Name(), p.Racks, p.Work)
	for _, g := range p.Groups {
		fmt.Fprintf(&b, "  group %s: %s to %v, mode %s%s, min_size %d, regions %v, %v of up to %d bytes, depth %d, pause %v, spare %q\n",
			g.Name, g.Sender, g.Receivers, g.Mode, g.Transport, g.MinSize, g.Regions, g.Kinds, g.Largest, g.Depth, g.Pause, g.Spare)
	}
	for _, f := range p.Faults {
		fmt.Fprintf(&b, "  %v\n", f)
	}
	return b.String()
}

// FirstMCID is the first of the groups' MC_IDs.
const FirstMCID = 0x80_0000

// FirstRow is the number of the first of Rows; seeds are smaller.
const FirstRow = 1 << 32

// Name returns the name of a number: "row 3", or "seed 17".
func (p *Plan) Name() string {
	if p.Seed >= FirstRow {
		return fmt.Sprint("row ", p.Seed-FirstRow+1)
	}
	return fmt.Sprint("seed ", p.Seed)
}

const ms = time.Millisecond

// Hosts returns the names of all hosts.
func (p *Plan) Hosts() (list []string) {
	for _, n := range p.Racks {
		for range n {
			list = append(list, fmt.Sprint("h", len(list)+1))
		}
	}
	return list
}

// Switches returns the names of all switches.
func (p *Plan) Switches() []string {
	if len(p.Racks) == 1 {
		return []string{"torA"}
	}
	return []string{"torA", "spine", "torB"}
}

// ToR returns the switch of a host's rack.
func (p *Plan) ToR(host string) string {
	i := slices.Index(p.Hosts(), host)
	if i < p.Racks[0] {
		return "torA"
	}
	return "torB"
}

// kinds of faults, the frequent ones several times.
var kinds = []What{KillApp, KillApp, KillApp, StopApp, StopApp, KillDaemon, KillDaemon, StopDaemon, WarpDaemon, KillAgent, StopAgent,
	WarpAgent, KillSwitch, StopSwitch, Cut, Cut, Cut, Loss, Loss, Reorder, Corrupt, Slow}

// Blame returns the receivers of a group that may be removed because of the faults: those affected
// by a fault, and those with a fault on the path from the sender. A doomed group may fail in spite
// of that.
func (p *Plan) Blame(g *Group) (blamable []string, doomed bool) {
	agents := false
	for _, f := range p.Faults {
		for _, r := range g.All() {
			if p.hits(f, g.Sender, r) && !slices.Contains(blamable, r) {
				blamable = append(blamable, r)
			}
			agents = agents || f.onAgent() && slices.Contains(p.way(g.Sender, r), f.Node)
		}
		doomed = doomed || p.dooms(f, g.Sender)
	}
	slices.Sort(blamable)
	// Without their agents, the switches cannot continue a group without a member.
	return blamable, doomed || agents && len(p.Faults) > 1
}

// dooms reports whether a group may fail because of a fault of its sender's application, daemon,
// link or switch. A clock is none of them, and a daemon that dies at a write is soon back.
func (p *Plan) dooms(f Fault, sender string) bool {
	if f.What == SetClock || f.What == KillAtWrite {
		return false
	}
	return f.Node == sender || f.Node == p.ToR(sender) && !f.What.OnLink() && !f.onAgent()
}

// hits reports whether a fault affects a receiver, or the path from the sender.
func (p *Plan) hits(f Fault, sender, receiver string) bool {
	switch {
	case f.What.OnLink():
		return p.crosses(sender, receiver, f)
	case f.What == WarpDaemon || f.What == SetClock:
		return false
	case f.What == KillSwitch || f.What == StopSwitch:
		return slices.Contains(p.way(sender, receiver), f.Node)
	case f.onAgent(): // its hellos stop, and neighbors take their links to it for dead
		return p.ToR(sender) != p.ToR(receiver)
	}
	return f.Node == receiver
}

func (f Fault) onAgent() bool {
	return f.What == KillAgent || f.What == StopAgent || f.What == WarpAgent ||
		(f.What == OldState || f.What == FullDisk || f.What == KillAtWrite) && isSwitch(f.Node)
}

// Kills counts the faults that are kills at a write. Each happens only if that write happens.
func (p *Plan) Kills() (n int) {
	for _, f := range p.Faults {
		if f.What == KillAtWrite {
			n++
		}
	}
	return n
}

// Restarts reports whether a switch is restarted.
func (p *Plan) Restarts() bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.What == KillSwitch })
}

func isSwitch(node string) bool { return slices.Contains([]string{"torA", "spine", "torB"}, node) }

// way returns the nodes on the path from one host to another, inclusive.
func (p *Plan) way(a, b string) []string {
	if p.ToR(a) == p.ToR(b) {
		return []string{a, p.ToR(a), b}
	}
	return []string{a, p.ToR(a), "spine", p.ToR(b), b}
}

// crosses reports whether the path from one host to another uses a fault's link.
func (p *Plan) crosses(a, b string, f Fault) bool {
	w := p.way(a, b)
	return slices.Contains(w, f.Node) && slices.Contains(w, f.Other)
}
