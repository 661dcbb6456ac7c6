package fastpath

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// A Fast is the kernel's part of a switch. Its methods are called with the switch's lock held, but for News and Look.
type Fast struct {
	k     *kernel
	log   *slog.Logger
	ports map[uint16]uint32 // interfaces
	all   []Port
	skew  time.Duration // what the kernel's time is ahead of the pipeline's
	news  *news

	looking sync.Mutex // guards the prober, and
	ended   bool

	plan       *plan // nil: the switch has no pipeline with the program that the kernel has
	pipe       *pipeline.Pipeline
	slots      slots
	sets       sets
	dropped    [bpf.DropUpdate + 1]bpf.Count // that are in the pipeline's counters
	settings   bpf.Settings
	generation map[uint32]uint64   // by cell
	ending     map[uint32]struct{} // cells for whose packets no more copies are made
	active     bool                // the kernel owns the state
	why        string              // it does not
	told       string              // by the log
	broken     error               // from when on it never will
	seen       view                // of the ports
	strays     uint64              // answers that came to the switch although they are the kernel's
}

// read is a cell of a map of counters.
func (f *Fast) read(table string, number uint32) bpf.Count {
	c, err := f.k.count(table, number)
	if err != nil {
		f.fail(err)
	}
	return c
}

// fail ends the processing in the kernel for good.
func (f *Fast) fail(err error) {
	if f.broken == nil {
		f.broken = err
		f.log.Error("the fast path ends, and all packets are processed by the switch itself; it must be started again to have it back", "error", err)
	}
}

// Programs are the numbers of the kernel's programs, by which "bpftool prog show id" finds them.
func (f *Fast) Programs() []uint32 { return f.k.programs() }

// Status says in a few words where packets are processed, and why.
func (f *Fast) Status() string {
	if !f.active {
		return "off: " + f.why
	}
	here := fmt.Sprintf("xdp at %d ports", len(f.all))
	if n := len(f.seen.absent); n > 0 {
		here = fmt.Sprintf("xdp at %d of %d ports (%s)", len(f.all)-n, len(f.all), strings.Join(f.seen.absent, "; "))
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
