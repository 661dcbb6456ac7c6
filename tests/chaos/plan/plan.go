// Package plan makes up what happens in a run of the fault matrix: a lab, groups with
// their work, and faults, all from a seed. It is pure.
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

// A Group is one, with what its sender does.
type Group struct {
	Name      string   `json:"name"` // and that of the service
	Key       uint64   `json:"key"`  // of what is written
	Sender    string   `json:"sender"`
	Receivers []string `json:"receivers"`
	Mode      string   `json:"mode"`
	MinSize   int      `json:"min_size"`
	Regions   []int    `json:"regions"`
	Kinds     []string `json:"kinds"`
	Largest   int      `json:"largest"` // bytes of an operation
	Depth     int      `json:"depth"`
	Transport string   `json:"transport,omitempty"`
	// Pause is the longest between two operations.
	Pause time.Duration `json:"pause,omitempty"`
	// Spare is added when a receiver was removed; empty: none.
	Spare string `json:"spare,omitempty"`
}

// All are the receivers with the spare one.
func (g *Group) All() []string {
	if g.Spare == "" {
		return g.Receivers
	}
	return append(slices.Clone(g.Receivers), g.Spare)
}

// A What is a kind of fault.
type What string

// The faults. Those of processes are of a host or a switch, the others of the
// link between two nodes.
const (
	KillApp    What = "kill app"    // SIGKILL; another comes after the time
	StopApp    What = "stop app"    // SIGSTOP, and SIGCONT after the time
	KillDaemon What = "kill daemon" // started again after the time
	StopDaemon What = "stop daemon"
	WarpDaemon What = "warp daemon" // as KillDaemon; its clocks have jumped
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
	OldState    What = "old state"     // a daemon or an agent is killed, and comes back with an older copy of its state
	FullDisk    What = "full disk"     // that of a daemon's or an agent's state; started again when there is room
	KillAtWrite What = "kill at write" // a daemon or an agent, before one of its durable writes
)

// OnLink says whether it is a link's.
func (w What) OnLink() bool { return slices.Contains([]What{Cut, Loss, Reorder, Corrupt, Slow}, w) }

// A Fault is one.
type Fault struct {
	What What
	At   time.Duration // since the work has begun
	For  time.Duration // until it is undone; 0: never
	// Node is what it happens to: a host or a switch; and Other is what a link's other
	// end is.
	Node, Other string
	Share       float64 // of frames, for Loss, Reorder and Corrupt
	Rate        uint64  // bits per second, for Slow

	By     time.Duration // by how much the clock jumps, for SetClock
	N      int           // for SetClock: so often; for KillAtWrite: before the N-th write
	Hold   time.Duration // for KillAtWrite: that write has taken so long by then
	Copied time.Duration // for OldState: when the copy was made; BeforeGroups: before there were any
}

// BeforeGroups is when a copy is made that knows of no group.
const BeforeGroups = -time.Nanosecond

// Between are pauses between the jumps of a clock.
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

// FirstMCID is the first of the virtual queue pairs that stand for groups.
const FirstMCID = 0x80_0000

// FirstRow is the number of the first of Rows; seeds are less.
const FirstRow = 1 << 32

// Name is how people call it: "row 3", or "seed 17".
func (p *Plan) Name() string {
	if p.Seed >= FirstRow {
		return fmt.Sprint("row ", p.Seed-FirstRow+1)
	}
	return fmt.Sprint("seed ", p.Seed)
}

const ms = time.Millisecond

// Hosts are the names of all.
func (p *Plan) Hosts() (list []string) {
	for _, n := range p.Racks {
		for range n {
			list = append(list, fmt.Sprint("h", len(list)+1))
		}
	}
	return list
}

// Switches likewise.
func (p *Plan) Switches() []string {
	if len(p.Racks) == 1 {
		return []string{"torA"}
	}
	return []string{"torA", "spine", "torB"}
}

// ToR is the switch of a host's rack.
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

// Blame says which receivers of a group may be removed for what is done: those to
// which it is done, and those whose way to the sender it is done to. Doomed is a
// group that may fail even so.
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
	// Without their agents, the switches cannot continue a group that lacks a
	// member.
	return blamable, doomed || agents && len(p.Faults) > 1
}

// dooms says whether a group may fail for a fault of its sender's application, daemon,
// link or switch. A clock is none of them, and a daemon that dies at a write is soon back.
func (p *Plan) dooms(f Fault, sender string) bool {
	if f.What == SetClock || f.What == KillAtWrite {
		return false
	}
	return f.Node == sender || f.Node == p.ToR(sender) && !f.What.OnLink() && !f.onAgent()
}

// hits says whether a fault is of a receiver, or of its way from the sender.
func (p *Plan) hits(f Fault, sender, receiver string) bool {
	switch {
	case f.What.OnLink():
		return p.crosses(sender, receiver, f)
	case f.What == WarpDaemon || f.What == SetClock:
		return false
	case f.What == KillSwitch || f.What == StopSwitch:
		return slices.Contains(p.way(sender, receiver), f.Node)
	case f.onAgent(): // its hellos cease, and neighbors take their links to it for dead
		return p.ToR(sender) != p.ToR(receiver)
	}
	return f.Node == receiver
}

func (f Fault) onAgent() bool {
	return f.What == KillAgent || f.What == StopAgent || f.What == WarpAgent ||
		(f.What == OldState || f.What == FullDisk || f.What == KillAtWrite) && isSwitch(f.Node)
}

// Kills counts the faults that are kills at a write. They come to be if there is that write.
func (p *Plan) Kills() (n int) {
	for _, f := range p.Faults {
		if f.What == KillAtWrite {
			n++
		}
	}
	return n
}

// Restarts says whether a switch is started anew.
func (p *Plan) Restarts() bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.What == KillSwitch })
}

func isSwitch(node string) bool { return slices.Contains([]string{"torA", "spine", "torB"}, node) }

// way are the nodes from one host to another, both included.
func (p *Plan) way(a, b string) []string {
	if p.ToR(a) == p.ToR(b) {
		return []string{a, p.ToR(a), b}
	}
	return []string{a, p.ToR(a), "spine", p.ToR(b), b}
}

// crosses says whether the way from one host to another uses a fault's link.
func (p *Plan) crosses(a, b string, f Fault) bool {
	w := p.way(a, b)
	return slices.Contains(w, f.Node) && slices.Contains(w, f.Other)
}
