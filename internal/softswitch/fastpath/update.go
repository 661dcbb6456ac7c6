package fastpath

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// leave is the time that copies in flight get to leave: the kernel sends them in the call that
// makes them. One that takes longer, because its processor was preempted, is dropped.
const leave = 50 * time.Microsecond

// Ends returns a function that does what takes time, without the switch's lock, before Changed may
// be called, and after which Ends is to be called again; nil: there is nothing. First it makes sets of
// ports, for which the kernel waits until all processors have seen them. Then no more copies are
// made of packets that may meet half the change, and it waits until those in flight have left.
func (f *Fast) Ends() (wait func()) {
	if f.plan == nil || f.broken != nil {
		return nil
	}
	c := f.changes()
	if added, err := f.sets.assign(c); err != nil {
		f.fail(err)
	} else if sets := f.sets.of(added); len(sets) > 0 {
		return func() { _ = f.k.putSets(sets) } // Changed tries again, and reports
	}
	if n := len(f.generations.ending); f.active {
		if f.end(c.turns); len(f.generations.ending) > n {
			return pause
		}
	}
	return nil
}

// pause sleeps in the kernel, because time.Sleep takes at least a millisecond in an idle process.
func pause() {
	for left := unix.NsecToTimespec(leave.Nanoseconds()); errors.Is(unix.Nanosleep(&left, &left), unix.EINTR); {
	}
}

// generations tell packets of each cell whether the tables change that they use.
type generations struct {
	of     map[uint32]uint64   // by cell
	ending map[uint32]struct{} // cells whose packets are not copied any more
}

func newGenerations() generations {
	return generations{map[uint32]uint64{}, map[uint32]struct{}{}}
}

// end stops the making of copies for the packets of some cells.
func (f *Fast) end(cells map[uint32]struct{}) {
	for cell := range cells {
		if _, ends := f.generations.ending[cell]; !ends {
			f.generations.ending[cell] = struct{}{}
			f.turnGeneration(cell, bpf.Ending)
		}
	}
}

func (f *Fast) turnGeneration(cell uint32, by uint64) {
	f.generations.of[cell] += by
	if err := f.k.put("generation", cell, f.generations.of[cell]); err != nil {
		f.fail(err)
	}
}

// leads is the order in which new items are written, so that nothing refers to an item that is not
// there yet.
var leads = []string{"regions", "group_regions", "copies", "pre_groups", "merge_groups", "merge_members", "groups"}

// unicastLeads is the same for unicast, which is written before groups.
var unicastLeads = []string{"ports_out", "ports_in", "ecn_ports", "port_hosts", "next_hops", "ecmp_groups", "routes", "router_macs", "bridge"}

// order returns the order in which a change is written. It keeps the items of a group adjacent in
// memory.
func (c *change) order() []place {
	return slices.SortedFunc(maps.Keys(c.put), func(a, b place) int {
		if x, y := slices.Index(unicastLeads, a.table), slices.Index(unicastLeads, b.table); x >= 0 || y >= 0 {
			return cmp.Compare(uint(x), uint(y)) //nolint:gosec // the largest value is of a group
		}
		return cmp.Or(cmp.Compare(c.put[a].of.n, c.put[b].of.n), cmp.Compare(slices.Index(leads, a.table), slices.Index(leads, b.table)))
	})
}

// changes returns the changes of tables, and of registers of slots in which answers are already
// merged.
func (f *Fast) changes() *change {
	c := f.plan.changes()
	for n := range f.slots.sets {
		if _, added := c.put[place{"merge_groups", n}]; !added {
			f.plan.turnSlot(n)
		}
	}
	return c
}

// Changed updates the maps to the tables. It is called after each access of the control plane.
func (f *Fast) Changed() {
	if f.plan == nil {
		return
	}
	c := f.changes()
	why := cmp.Or(f.seen.refusal, f.plan.why())
	if f.broken == nil {
		if err := f.makeSets(c); err != nil {
			f.fail(err)
		}
	}
	if f.broken != nil {
		why = f.broken.Error()
	}
	next := bpf.Settings{}
	if e := f.plan.settings.DefaultEntry(); e != nil {
		next = bpf.Settings{ICRCMode: uint32(arg(e, 0)), HashSeed: uint32(arg(e, 1))} //nolint:gosec // the widths of the program
	}
	if why != "" {
		next.Climbs = 1
	}
	f.why = why
	defer f.tell()
	turns := f.active != (why == "")
	if turns || next != f.settings {
		c.turns[everything] = struct{}{}
	}
	switch none := c.none() && len(f.slots.sets) == 0 && len(f.slots.fresh) == 0; {
	case len(c.turns) > 0:
		f.apply(c.turns, func() error {
			errs := []error{f.writeRegisters(), f.write(c)}
			if turns {
				errs = append(errs, f.turn(why == ""))
			}
			return errors.Join(append(errs, f.k.put("settings", uint32(0), next))...)
		})
		f.settings = next
	case !none:
		if err := errors.Join(f.writeRegisters(), f.write(c)); err != nil {
			f.fail(err)
		}
	}
	c.reset()
	f.sweep()
	f.sets.collect(f.plan)
	if f.broken != nil && f.active {
		f.Changed() // a write failed: back to the pipeline
	}
}

// tell logs where packets are processed when that has changed, ignoring the number of groups.
func (f *Fast) tell() {
	is := fmt.Sprint(f.why, f.seen.absent, f.seen.narrow, f.seen.err, f.active, f.settings.ICRCMode)
	if f.told != is {
		f.told = is
		f.log.Info("fast path", "is", f.Status())
	}
}

// apply changes the maps so that no packet of some cells sees half of the change.
func (f *Fast) apply(cells map[uint32]struct{}, change func() error) {
	if _, all := cells[everything]; all {
		cells = map[uint32]struct{}{everything: {}}
	}
	failed, ending := f.broken != nil, f.generations.ending
	n := len(ending)
	if f.end(cells); f.active && len(ending) > n {
		pause()
	}
	for cell := range ending {
		f.turnGeneration(cell, 1) // odd
	}
	if failed || f.broken == nil { // else it may not be odd
		if err := change(); err != nil {
			f.fail(err)
		}
	}
	for cell := range ending {
		f.turnGeneration(cell, 1)
	}
	clear(ending)
}

// write writes a change.
func (f *Fast) write(c *change) error {
	var errs []error
	for at := range c.remove {
		errs = append(errs, f.k.remove(at.table, at.key))
	}
	for _, at := range c.order() {
		is := c.put[at].is
		switch p := is.(type) {
		case portIn:
			p.Flood = f.sets.numbers[p.flood]
			is = p.Port
		case preGroup:
			is = bpf.PREGroup{Set: uint16(f.sets.numbers[p.set]), N: uint16(len(p.set.interfaces())), First: p.first} //nolint:gosec // 4096 and 512 at most
		case bpf.Out:
			errs = append(errs, f.k.putOut(f.k.Maps[at.table], at.key.(uint32), p.Interface))
			continue
		}
		errs = append(errs, f.k.put(at.table, at.key, is))
	}
	return errors.Join(errs...)
}

// turn moves the merging state to the kernel or to the pipeline.
func (f *Fast) turn(toKernel bool) error {
	var errs []error
	for n := range f.slots.entries {
		if toKernel {
			errs = append(errs, f.state(n))
		} else {
			f.look(n)
		}
	}
	f.active = toKernel
	return errors.Join(errs...)
}

// writeRegisters copies registers written by the control plane to the kernel, if the kernel owns
// them.
func (f *Fast) writeRegisters() error {
	var errs []error
	if f.active {
		for _, n := range f.slots.fresh {
			errs = append(errs, f.state(n))
		}
		for n, list := range f.slots.sets {
			errs = append(errs, f.set(n, list))
		}
	}
	f.slots.fresh = nil
	clear(f.slots.sets)
	return errors.Join(errs...)
}

// sweep collects the counts of deleted entries.
func (f *Fast) sweep() {
	for e := range f.plan.cells.gone {
		f.left(e)
	}
	f.plan.cells.sweep()
}

// Mine reports whether a received frame is an answer to be merged whose state the kernel owns, or a
// probe frame. Such an answer reached the switch in the middle of an update, or before the kernel
// owned the state. Damaged answers are not reported: the pipeline does not merge them.
func (f *Fast) Mine(frame []byte) bool {
	const (
		headers = rocev2.EthernetLen + rocev2.IPv4Len
		least   = rocev2.UDPLen + rocev2.BTHLen + rocev2.ICRCLen
	)
	if bytes.HasPrefix(frame, probeHeader) { // of a switch at the other end
		return true
	}
	if !f.active || len(frame) < headers+least || frame[12] != 8 || frame[13] != 0 || frame[14] != 0x45 || frame[23] != rocev2.ProtocolUDP ||
		binary.BigEndian.Uint16(frame[36:]) != rocev2.UDPPort {
		return false
	}
	n := int(binary.BigEndian.Uint16(frame[38:]))
	switch op := rocev2.Opcode(frame[42]); {
	case op != rocev2.Acknowledge && op != rocev2.CNP,
		binary.BigEndian.Uint16(frame[20:])&0x3fff != 0, // a fragment
		n < least || op == rocev2.Acknowledge && n < least+rocev2.AETHLen,
		int(binary.BigEndian.Uint16(frame[16:])) != n+rocev2.IPv4Len,
		len(frame) < headers+n,
		rocev2.Checksum(frame[14:headers]) != 0:
		return false
	}
	e := f.plan.members.Exactly(uint64(binary.BigEndian.Uint32(frame[26:])), uint64(binary.BigEndian.Uint32(frame[30:])), uint64(binary.BigEndian.Uint32(frame[46:])&0xffffff))
	if e == nil || f.plan.member(e).Bypass == 1 {
		return false
	}
	f.strays++
	return true
}

// makeSets creates the port sets that a change needs, before it begins, if they are not there.
func (f *Fast) makeSets(c *change) error {
	if _, err := f.sets.assign(c); err != nil {
		return err
	}
	var needed []portSet
	for _, v := range c.put {
		if s := setIn(v.is); s != "" {
			needed = append(needed, s)
		}
	}
	return f.k.putSets(f.sets.of(needed))
}
