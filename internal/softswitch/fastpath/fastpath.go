// Package fastpath has the Linux kernel process what is hot of the embedded switch's packets (package bpf):
// unicast, copies of groups in mode neutral, members' answers. The switch's pipeline stays the table store and
// takes all other packets, which come to it by its packet sockets as they do without this.
//
//	f, err := fastpath.New(fastpath.Config{…}) // the programs are at the ports; all packets climb
//	sw.Accelerate(f)                           // …, until the tables are in the kernel
//	…
//	err = f.Close()
//
// # Who owns what
//
// Tables: the pipeline. After each access of the control plane, the maps are brought to what the tables say,
// as one step: while that is under way requests and unicast climb, and what can't (answers, copies on
// their way) is dropped and counted as DropUpdate. Where only groups change, theirs do alone.
//
// Merging state: the kernel, for all groups, while packets are processed there; answers that still come to the
// switch then are dropped and counted. Counters: what each has counted is added up. Both are in the pipeline whenever the
// control plane looks, so P4Runtime and what stands upon it see no difference.
//
// All of that ends, and state moves to the pipeline, as soon as there is anything that the kernel cannot do for all
// packets: another program, rules of fault injection, ECMP groups with too many paths. It begins anew when that has gone.
//
// Nothing is pinned: when the process ends, however it does, the kernel takes programs and maps away.
package fastpath

import (
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

// A Port is a port of the switch that is a network interface.
type Port struct {
	Number uint16
	Name   string
	Index  int
}

// Config is what New takes.
type Config struct {
	Ports []Port               // all of the switch's
	Now   func() time.Duration // the pipeline's time
	Log   *slog.Logger
}

// known is the program of p4src.
var known = sync.OnceValues(func() (*program.Program, error) { return program.Load(bmv2.JSON) })

// atIngress says which drops of the kernel are those of ingress, by reason; the others are those of egress.
var atIngress = func() (is [bpf.DropUpdate]bool) {
	for i, reason := range bmv2.DropReasons {
		is[i] = slices.Contains([]string{"malformed", "ip_checksum", "icrc", "ttl", "no_route", "no_next_hop", "unknown_mac", "spoofed"}, reason)
	}
	return is
}()

// New puts the programs at all ports. Until a Switch has taken the Fast, all packets climb. The error says why
// the kernel, or which port, cannot; then nothing is left.
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
	f = &Fast{k: k, log: c.Log, ports: map[uint16]uint32{}, slots: newSlots(), sets: newSets(), generation: map[uint32]uint64{}, ending: map[uint32]struct{}{}, why: "there is no program yet"}
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
	if f.seen = f.k.see(f.all); f.seen.err != nil { // of what changes meanwhile there are news
		return nil, fmt.Errorf("fast path: %w", errors.Join(f.seen.err, f.news.close()))
	}
	return f, nil
}

// News gets a token when something has changed at a port, or at a veth's other end.
func (f *Fast) News() <-chan struct{} { return f.news.dirty }

// Look sees whether all ports send what is redirected to them. It is to be called each second or so, and when there are News, without
// the switch's lock, with which what it returns is to be called then.
func (f *Fast) Look() (note func()) {
	f.looking.Lock()
	defer f.looking.Unlock()
	if f.ended {
		return func() {}
	}
	if f.news.heard.Swap(false) {
		clear(f.k.prober.seen) // what was taken before says nothing
	}
	seen := f.k.see(f.all)
	return func() {
		if f.all == nil {
			return // it has ended meanwhile
		}
		if f.seen = seen; seen.err != nil {
			f.fail(seen.err)
		}
		f.Changed()
	}
}

// A view is what a look at all ports has shown.
type view struct {
	refusal string   // of a port that is up and does not send what is redirected to it
	absent  []string // ports that carry nothing, and why
	err     error
}

// see looks at all ports, and tries those that carry packets.
func (p *prober) see(all []Port) (v view) {
	states, err := lookAt()
	v.err = err
	for _, at := range all {
		switch s, there := states[at.Index]; {
		case v.err != nil:
			return v
		case !there:
			v.absent = append(v.absent, at.named()+", was removed")
		case !s.up:
			v.absent = append(v.absent, at.named()+", is down")
		case s.veth: // other drivers say at once what they cannot do
			p.try(at, s.name, &v)
		}
	}
	return v
}

// try notes whether a veth takes what is redirected to it.
func (p *prober) try(at Port, name string, v *view) {
	takes, err := p.takes(at.Index, name)
	if takes {
		return
	}
	states, lost := lookAt()
	switch {
	case lost != nil:
		v.err = lost
	case !states[at.Index].up || states[at.Index].name != name: // meanwhile: the next look says why
	case err != nil:
		v.err = err
	default:
		v.refusal = fmt.Sprintf("%s: %v", at.named(), errRefuses)
	}
}

// Taken returns the ports at which there is some XDP program. Whose interfaces have one of another switch see only what that one
// lets climb.
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

// Close takes the programs off the ports. What the kernel has counted and merged last is lost.
func (f *Fast) Close() error {
	if f.all == nil {
		return nil
	}
	if f.pipe != nil {
		f.pipe.SetOffload(nil)
		f.plan.engine.Changed = nil
	}
	f.pipe, f.plan, f.all, f.active, f.why = nil, nil, nil, false, "it has ended"
	f.looking.Lock()
	defer f.looking.Unlock()
	f.ended = true
	return errors.Join(f.news.close(), f.k.close())
}

// Loaded is called when the switch has got another pipeline.
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

// empty takes everything of a pipeline out of the maps.
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
	f.sets.unused()
	f.pipe, f.plan, f.slots = nil, nil, newSlots()
	for i := range f.dropped { // a new pipeline counts from 0
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

// SettingChanged implements pipeline.Offload: Changed looks at settings anyway.
func (f *Fast) SettingChanged(*pipeline.Table) {}

// GroupChanged implements pipeline.Offload.
func (f *Fast) GroupChanged(*pipeline.Profile) {
	for e := range f.plan.ecmpGroups.All() {
		f.plan.touch(unit{kind: ecmp, e: e})
	}
}

// Stats are counts since the start.
type Stats struct {
	Routed, Requests, Copies, Answers uint64 // packets that were routed, copied, came of that, and that senders got
	Dropped                           uint64 // for all reasons
	Updates                           uint64 // of these: what met half an update
	Strays                            uint64 // answers that came to the switch although they are the kernel's
}

// Stats returns counts.
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
