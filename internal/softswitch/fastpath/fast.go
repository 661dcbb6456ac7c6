package fastpath

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// A Fast is the kernel's part of a switch. Its methods are called with the switch's lock held.
type Fast struct {
	k     *kernel
	log   *slog.Logger
	ports map[uint16]uint32 // interfaces
	all   []Port
	skew  time.Duration // what the kernel's time is ahead of the pipeline's

	plan       *plan // nil: the switch has no pipeline with the program that the kernel has
	pipe       *pipeline.Pipeline
	slots      slots
	sets       sets
	dropped    [bpf.DropUpdate + 1]bpf.Count // that are in the pipeline's counters
	settings   bpf.Settings
	generation uint64
	active     bool   // the kernel owns the state
	why        string // it does not
	broken     error  // from when on it never will
	unproven   []Port // that may not send what is redirected to them
	refusal    string // of one that is up and does not
	strays     uint64 // answers that came to the switch although they are the kernel's
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
	if f.active {
		return fmt.Sprintf("xdp at %d ports", len(f.ports))
	}
	return "off: " + f.why
}
