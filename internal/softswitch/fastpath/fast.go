package fastpath

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// A Fast is the fast path of a switch. Its methods, except News and Look, are called with the
// switch's lock held.
type Fast struct {
	k     *kernel
	log   *slog.Logger
	ports map[uint16]uint32 // interfaces, by port
	all   []Port
	skew  time.Duration // the kernel's time minus the pipeline's
	news  *news

	plan        *plan // nil: the switch has no pipeline with the kernel's program
	pipe        *pipeline.Pipeline
	slots       slots
	sets        sets
	dropped     [bpf.DropUpdate + 1]bpf.Count // already in the pipeline's counters
	settings    bpf.Settings
	generations generations
	active      bool   // the kernel owns the merging state
	why         string // why active is false
	told        string // last logged status
	broken      error  // after this error active stays false
	seen        view   // latest look at the ports
	strays      uint64 // answers that reached the switch although the kernel owns the state
}

// read returns a cell of a counter map.
func (f *Fast) read(table string, number uint32) bpf.Count {
	c, err := f.k.count(table, number)
	if err != nil {
		f.fail(err)
	}
	return c
}

// fail ends processing in the kernel permanently.
func (f *Fast) fail(err error) {
	if f.broken == nil {
		f.broken = err
		f.log.Error("the fast path ends, and all packets are processed by the switch itself; it must be started again to have it back", "error", err)
	}
}

// Programs returns the kernel's IDs of the programs, for "bpftool prog show id".
func (f *Fast) Programs() []uint32 { return f.k.programs() }

// Status says briefly where packets are processed, and why.
func (f *Fast) Status() string {
	if !f.active {
		return "off: " + f.why
	}
	here := fmt.Sprintf("xdp at %d ports", len(f.all))
	if n := len(f.seen.absent); n > 0 {
		here = fmt.Sprintf("xdp at %d of %d ports (%s)", len(f.all)-n, len(f.all), strings.Join(f.seen.absent, "; "))
	}
	if f.seen.narrow != "" {
		here += " (" + f.seen.narrow + ")"
	}
	if f.seen.err != nil {
		here += fmt.Sprintf(" (cannot look at them: %v)", f.seen.err)
	}
	climbing, all := len(f.plan.climbing), len(f.plan.climbing)+len(f.plan.copied)
	switch {
	case f.settings.ICRCMode == bpf.Recompute:
		return here + ": unicast but for RoCE's requests, answers; the switch itself: RoCE's requests, of groups too, since the ICRC's mode is not neutral"
	case f.settings.ICRCMode != bpf.Neutral:
		return here + ": unicast, answers; the switch itself: requests to groups, since the ICRC's mode is not neutral"
	case climbing > 0:
		return fmt.Sprintf("%s: unicast, answers, requests to %d of %d groups; the switch itself: requests to the others, of which some copy needs its ICRC computed anew "+
			"or shares its port with another", here, all-climbing, all)
	}
	return fmt.Sprintf("%s: unicast, answers, requests to all groups (%d)", here, all)
}
