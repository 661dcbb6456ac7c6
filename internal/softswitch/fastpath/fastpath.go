// Package fastpath processes the most frequent packets of the embedded switch in the Linux kernel
// (package bpf): unicast, copies of groups in mode neutral, members' answers. The switch's pipeline
// remains the owner of the tables, and processes all other packets. Those reach it through its
// packet sockets, as without a fast path: they climb.
//
//	f, err := fastpath.New(fastpath.Config{…}) // attaches the programs to the ports; all packets climb
//	sw.Accelerate(f)                           // …, until the tables are in the kernel
//	…
//	err = f.Close()
//
// # Ownership
//
// Tables belong to the pipeline. After each access of the control plane, the maps are updated to
// the tables in one step. During the step, requests and unicast packets climb; packets that cannot
// climb (answers, copies in flight) are dropped and counted as DropUpdate. If only groups change,
// this affects only their packets.
//
// Merging state belongs to the kernel, for all groups, while the kernel processes packets; answers
// that still reach the switch then are dropped and counted. Counters are the sums of both sides.
// Whenever the control plane reads state or counters, the pipeline has the current values, so
// P4Runtime and its users see no difference.
//
// Processing in the kernel stops, and its state moves to the pipeline, while the switch needs
// something that the kernel cannot do for all packets: another program, rules of fault injection,
// ECMP groups with too many paths. It restarts when that ends.
//
// Nothing is pinned: when the process ends for any reason, the kernel removes programs and maps.
package fastpath

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// A Port is a port of the switch on a network interface.
type Port struct {
	Number uint16
	Name   string
	Index  int
}

// Config configures a Fast.
type Config struct {
	Ports []Port               // all ports of the switch
	Now   func() time.Duration // returns the pipeline's time
	Log   *slog.Logger
}

// known returns the program of p4src.
var known = sync.OnceValues(func() (*program.Program, error) { return program.Load(bmv2.JSON) })

// atIngress tells by reason which of the kernel's drops count as ingress drops; the others count as
// egress drops.
var atIngress = func() (is [bpf.DropUpdate]bool) {
	for i, reason := range bmv2.DropReasons {
		is[i] = slices.Contains([]string{"malformed", "ip_checksum", "icrc", "ttl", "no_route", "no_next_hop", "unknown_mac", "spoofed"}, reason)
	}
	return is
}()

// New attaches the programs to all ports. Until a Switch has accepted the Fast, all packets climb.
// The error says why the kernel or a port cannot do it; then nothing stays attached.
func New(c Config) (f *Fast, err error) {
	if len(c.Ports) == 0 {
		return nil, errors.New("fast path: the switch has no ports")
	}
	k, err := load()
	if err != nil {
		return nil, fmt.Errorf("fast path: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()
	f = &Fast{k: k, log: c.Log, ports: map[uint16]uint32{}, slots: newSlots(), sets: newSets(), generations: newGenerations(), why: "there is no program yet"}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return nil, fmt.Errorf("fast path: %w", err)
	}
	f.skew = time.Duration(ts.Nano()) - c.Now()
	f.settings = bpf.Settings{Climbs: 1}
	if err := k.put("settings", uint32(0), f.settings); err != nil {
		return nil, fmt.Errorf("fast path: %w", err)
	}
	for _, p := range c.Ports {
		if err := k.attach(p.Index); err != nil {
			return nil, fmt.Errorf("fast path: %s: %w", p.named(), err)
		}
		f.ports[p.Number] = uint32(p.Index) //nolint:gosec // an interface's number
	}
	f.all = c.Ports
	if f.news, err = follow(f.all); err != nil {
		return nil, fmt.Errorf("fast path: %w", err)
	}
	if f.seen = f.k.look(f.all, false); f.seen.err != nil { // news reports later changes
		return nil, fmt.Errorf("fast path: %w", errors.Join(f.seen.err, f.news.close()))
	}
	return f, nil
}

// News returns a channel that gets a token when something has changed at a port, or at a veth's
// other end.
func (f *Fast) News() <-chan struct{} { return f.news.dirty }

// Look tests whether all ports send what is redirected to them. The caller calls it about each
// second, and after News, without the switch's lock, and then calls the returned function with the
// lock.
func (f *Fast) Look() (note func()) {
	seen := f.k.look(f.all, f.news.heard.Swap(false))
	return func() {
		if f.k.closed {
			return
		}
		turns := seen.err == nil && seen.refusal != f.seen.refusal
		if f.seen.err = seen.err; seen.err == nil { // else what was seen before is likely to be so still
			f.seen = seen
		}
		if turns || f.broken != nil {
			f.Changed()
		} else if f.plan != nil {
			f.tell()
		}
	}
}

// A view is the result of a look at all ports.
type view struct {
	refusal string   // of a port that is up and does not send redirected frames
	absent  []string // ports that carry no packets, and why
	narrow  string   // a port with a smaller MTU than another
	err     error
}

// look looks at all ports, and tests those that carry packets: anew if something has changed since
// the last look.
func (p *prober) look(all []Port, changed bool) (v view) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return view{}
	}
	if changed {
		clear(p.seen) // earlier successes no longer count
	}
	states, err := lookAt()
	v.err = err
	v.narrow = narrow(all, states)
	for _, at := range all {
		switch s, there := states[at.Index]; {
		case v.err != nil:
			return v
		case !there:
			v.absent = append(v.absent, at.named()+", was removed")
		case !s.xdp: // its answers would come to the switch, which does not have the state to merge them with
			v.refusal = at.named() + ": its XDP program was taken off; start the switch again"
		case !s.up:
			v.absent = append(v.absent, at.named()+", is down")
		case s.veth: // other drivers report their limits directly
			p.try(at, s.name, &v)
		}
	}
	return v
}

// narrow names a port with a smaller MTU than another. The kernel does not count the longer frames
// that it drops there.
func narrow(all []Port, states map[int]state) string {
	byMTU := func(x, y Port) int { return states[x.Index].mtu - states[y.Index].mtu }
	all = slices.DeleteFunc(slices.Clone(all), func(p Port) bool { return states[p.Index].mtu == 0 })
	if len(all) == 0 {
		return ""
	}
	slices.SortFunc(all, func(x, y Port) int { return cmp.Compare(x.Number, y.Number) })
	least, most := slices.MinFunc(all, byMTU), slices.MaxFunc(all, byMTU)
	if byMTU(least, most) == 0 {
		return ""
	}
	return fmt.Sprintf("%s, has an MTU of %d, and %s, %d: longer frames are dropped, uncounted",
		least.named(), states[least.Index].mtu, most.named(), states[most.Index].mtu)
}

// try tests whether a veth sends what is redirected to it.
func (p *prober) try(at Port, name string, v *view) {
	takes, err := p.takes(at.Index, name)
	if takes {
		return
	}
	states, lost := lookAt()
	switch {
	case lost != nil:
		v.err = lost
	case !states[at.Index].up || states[at.Index].name != name: // changed meanwhile: the next look reports why
	case err != nil:
		v.err = err
	default:
		v.refusal = fmt.Sprintf("%s: %v", at.named(), errRefuses)
	}
}

// Taken returns the ports that already have an XDP program. If it is another switch's, this switch
// sees only the packets that climb there.
func Taken(ports []Port) (list []Port, err error) {
	states, err := lookAt()
	for _, p := range ports {
		if states[p.Index].xdp {
			list = append(list, p)
		}
	}
	return list, err
}

func (p Port) named() string { return fmt.Sprintf("port %d, interface %s", p.Number, p.Name) }

// Close detaches the programs. The kernel's latest counts and merging state are lost.
func (f *Fast) Close() error {
	if f.k.closed {
		return nil
	}
	if f.pipe != nil {
		f.pipe.SetOffload(nil)
		f.plan.engine.Changed = nil
	}
	f.pipe, f.plan, f.active, f.why = nil, nil, false, "it has ended"
	return errors.Join(f.news.close(), f.k.close())
}

// Loaded is called when the switch has a new pipeline.
func (f *Fast) Loaded(p *pipeline.Pipeline, e *pre.Engine) {
	if f.pipe != nil {
		f.pipe.SetOffload(nil)
		f.plan.engine.Changed = nil
	}
	f.empty()
	want, err := known()
	if err != nil || !reflect.DeepEqual(p.Program(), want) {
		f.why = "the switch runs another program than the one that the kernel has"
		f.log.Warn("fast path", "is", f.Status())
		f.told = ""
		return
	}
	f.pipe, f.plan = p, newPlan(p, e, f.ports, f.read)
	for x := range f.plan.mergeGroups.All() {
		f.merges(x)
	}
	p.SetOffload(f)
	e.Changed = f.plan.preGroupChanged
	f.Changed()
}

// empty removes everything of a pipeline from the maps.
func (f *Fast) empty() {
	f.apply(map[uint32]struct{}{everything: {}}, func() error {
		f.active, f.settings = false, bpf.Settings{Climbs: 1}
		if f.plan == nil {
			return f.k.put("settings", uint32(0), f.settings)
		}
		errs := []error{f.k.put("settings", uint32(0), f.settings)}
		for _, has := range f.plan.have {
			for at := range has {
				errs = append(errs, f.k.remove(at.table, at.key))
			}
		}
		for n := range f.slots.entries {
			errs = append(errs, f.k.putSlot(n, &bpf.Slot{}))
		}
		return errors.Join(errs...)
	})
	f.pipe, f.plan, f.slots, f.sets = nil, nil, newSlots(), newSets()
	for i := range f.dropped { // a new pipeline starts at 0
		f.dropped[i] = f.read("drops", uint32(i)) //nolint:gosec // few
	}
}

// EntryChanged implements pipeline.Offload.
func (f *Fast) EntryChanged(t *pipeline.Table, e *pipeline.Entry, gone bool) {
	f.plan.changed(t, e, gone)
	if t == f.plan.mergeGroups && !gone {
		f.merges(e)
	}
}

// SettingChanged implements pipeline.Offload. It does nothing, because Changed always checks the
// settings.
func (f *Fast) SettingChanged(*pipeline.Table) {}

// GroupChanged implements pipeline.Offload.
func (f *Fast) GroupChanged(*pipeline.Profile) {
	for e := range f.plan.ecmpGroups.All() {
		f.plan.touch(unit{kind: ecmp, e: e})
	}
}

// Stats are counters since the start.
type Stats struct {
	Routed, Requests, Copies, Answers uint64 // packets routed, requests replicated, copies made of them, and answers sent to senders
	Dropped                           uint64 // for any reason
	Updates                           uint64 // of these: packets that met an incomplete update
	Strays                            uint64 // answers that reached the switch although the kernel owns the state
}

// Stats returns the counters.
func (f *Fast) Stats() Stats {
	s := Stats{Strays: f.strays, Updates: f.read("drops", bpf.DropUpdate).Packets}
	for i, to := range [bpf.Handled]*uint64{bpf.Routed: &s.Routed, bpf.Requests: &s.Requests, bpf.Copies: &s.Copies, bpf.PassedOn: &s.Answers} {
		*to = f.read("handled", uint32(i)).Packets //nolint:gosec // few
	}
	for i := range uint32(bpf.DropUpdate + 1) {
		s.Dropped += f.read("drops", i).Packets
	}
	return s
}
