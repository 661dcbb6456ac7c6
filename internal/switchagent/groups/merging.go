package groups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// Info is what a group is installed with, and its lease.
type Info struct {
	bifurcation.Group // with Address
	CNPGap, Lease     time.Duration
	Number            uint64 // at the sender's daemon, which repeats it after a restart of this agent; 0: unknown
	Expires           time.Time
}

// Key names the group.
func (g *Info) Key() Key { return Key{g.Source, g.ID} }

// StepKey names its step at the switch where it is installed.
func (g *Info) StepKey() StepKey { return StepKey{g.Key(), g.Address} }

// A Group is installed at this switch, which merges its answers. Who has the turn of its step may
// read its bifurcation.Group.
type Group struct {
	Info
	generation uint64
	merging    *Merging
	step       *Step
	void       bool // given up: it counts as absent, and will be removed
}

// maxLease bounds leases.
const maxLease = 24 * time.Hour

// CheckTimes checks what a group is installed with.
func CheckTimes(cnpGap, lease time.Duration) error {
	if cnpGap < 0 || cnpGap > time.Hour {
		return fmt.Errorf("%w: a least time of %v between CNPs is not in 0 to 1 h", bifurcation.ErrInvalid, cnpGap)
	}
	if lease <= 0 || lease > maxLease {
		return fmt.Errorf("%w: a lease of %v is not in 0 to %v", bifurcation.ErrInvalid, lease, maxLease)
	}
	return nil
}

// installed reports whether the group is in use: its installation is complete, and it was not given
// up.
func (g *Group) installed() bool { return g != nil && g.step != nil && !g.void }

// Spec is the purpose of that step, to who has its turn.
func (g *Group) Spec() Spec { return Spec{Generation: g.generation, Receivers: g.Receivers} }

// Merging merges the group's answers. It is for who has the turn of its step.
func (g *Group) Merging() *Merging { return g.merging }

func (g *Info) sameAs(o *Info) bool {
	return g.Source == o.Source && g.ID == o.ID && g.SenderQPN == o.SenderQPN && g.InitialPSN == o.InitialPSN &&
		g.Address == o.Address && g.CNPGap == o.CNPGap && planner.Equal(g.Receivers, o.Receivers)
}

// A View is what a group is at a time, and where the switch counts its answers.
type View struct {
	Info
	Problems    []string
	Slot, Epoch uint16
	Members     []bifurcation.MergeMember
	Base        []p4rt.MemberCounts // when this use of the slot began; nil: all 0
}

func (g *Group) view() View {
	v := View{Info: g.Info, Slot: g.merging.Slot(), Epoch: epochOf(g.merging.use), Members: g.merging.members, Base: g.merging.base}
	if g.step != nil {
		v.Problems = g.step.state.Problems
	}
	return v
}

// Merging is how a group's answers are merged.
type Merging struct {
	of        *Group
	use       uint64 // the number of its use of a slot; 0: it has none
	leaving   bool   // an edit is deleting it from the switch
	psn       uint32
	learn     bool
	members   []bifurcation.MergeMember // including those that left, whose late answers must be dropped
	current   uint16                    // bits of members
	source    netip.Addr
	senderQPN uint32
	cnpGap    uint32              // µs
	base      []p4rt.MemberCounts // the slot's counters before this use; nil: all 0
}

// newMerging returns the merging of a group that begins at its PSN. It has no slot yet.
func newMerging(g *Group) *Merging {
	m := bifurcation.MergeOf(g.Group)
	return &Merging{of: g, psn: m.InitialPSN, members: m.Members, current: m.Current, source: m.Source, senderQPN: m.SenderQPN,
		cnpGap: uint32(g.CNPGap.Microseconds())} //nolint:gosec // checked at the border
}

// Slot is the slot in which it merges. It is for who has given it one.
func (m *Merging) Slot() uint16 { return slotOf(m.use) }

func (m *Merging) group() switchspec.MergeGroup {
	return switchspec.MergeGroup{Slot: m.Slot(), Members: m.current, Epoch: epochOf(m.use), InitialPSN: m.psn, Learn: m.learn,
		Source: m.source, SenderQPN: m.senderQPN, CNPGap: m.cnpGap}
}

func (m *Merging) bypass() switchspec.Bypass {
	return switchspec.Bypass{Src: m.source, Dst: m.of.Source, QPN: m.senderQPN}
}

func (m *Merging) member(x bifurcation.MergeMember) switchspec.MergeMember {
	return switchspec.MergeMember{Src: x.Src, Dst: x.Dst, DestQP: x.QPN, Slot: m.Slot(), Index: x.Index}
}

func (m *Merging) entities() []switchspec.Entity {
	out := make([]switchspec.Entity, 0, len(m.members)+2)
	out = append(out, m.bypass(), m.group())
	for _, x := range m.members {
		out = append(out, m.member(x))
	}
	return out
}

// keepOnly makes merging wait for these of its members only.
func (m *Merging) keepOnly(receivers []bifurcation.Receiver) {
	for _, x := range m.members {
		if !slices.ContainsFunc(receivers, func(r bifurcation.Receiver) bool { return r.Addr == x.Src }) {
			m.current &^= 1 << x.Index
		}
	}
}

// checkQPNs refuses merging whose MC_ID is the QPN of another group's sender, or vice versa,
// because the switch could not distinguish an answer from a packet that bypasses merging.
func (t *Table) checkQPNs(m *Merging) error {
	other, clash := t.groups[Key{m.of.Source, m.senderQPN}]
	clash = clash && other.merging != nil && slices.ContainsFunc(other.merging.members, func(x bifurcation.MergeMember) bool { return x.Src == m.source })
	for _, x := range m.members {
		for _, o := range t.slots.bypasses[switchspec.Bypass{Src: x.Src, Dst: x.Dst, QPN: x.QPN}.Key()] {
			other, clash = o.of, true
		}
	}
	if !clash {
		return nil
	}
	return fmt.Errorf("%w: the MC_ID of one is the QPN of the other's sender, and both have a receiver in common: groups %v and %v; take MC_IDs that no device gives to a queue pair",
		ErrExists, m.of.Key(), other.Key())
}

// useSlot assigns a slot to merging.
func (t *Table) useSlot(m *Merging) error {
	if err := t.checkQPNs(m); err != nil {
		return err
	}
	err := t.slots.take(m)
	if errors.Is(err, errUsedUp) {
		t.Log.Warn("the switch is cleared", "reason", err)
		t.Clear(err.Error())
	}
	return err
}

// Free frees merging's slot, if it has one.
func (t *Table) Free(m *Merging) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots.give(m)
}

// settings returns the switch's settings.
func (t *Table) settings() switchspec.Settings {
	s := t.Settings
	s.Owner, s.Numbers = t.slots.Owner, t.slots.Numbers
	return s
}

// Entities returns what merging is on the switch, and the settings that record that its use's
// number is taken.
func (t *Table) Entities(m *Merging) ([]switchspec.Entity, switchspec.Settings, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m.use == 0 {
		return nil, switchspec.Settings{}, fmt.Errorf("%w: it has been given up", ErrNotFound)
	}
	m.leaving = false
	return m.entities(), t.settings(), nil
}

// Leaving returns the entries of merging that is deleted from the switch, except those that another
// group or another slot has taken over.
func (t *Table) Leaving(m *Merging, want *switchspec.State) (gone []switchspec.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.leaving = true
	if !t.slots.shared(m) {
		gone = append(gone, m.bypass().Key())
	}
	if m.use == 0 {
		return gone
	}
	gone = append(gone, m.group().Key())
	for _, x := range m.members {
		k := m.member(x).Key()
		if now, there := want.Find(k); there && now.(switchspec.MergeMember).Slot == m.Slot() {
			gone = append(gone, k)
		}
	}
	return gone
}

// beginAnew gives merging a new use of a slot, in which nothing is passed on before all members
// have answered.
func (t *Table) beginAnew(m *Merging, want *switchspec.State) error {
	t.slots.give(m)
	if err := t.useSlot(m); err != nil {
		return err
	}
	m.learn = true
	return want.Put(m.entities()...)
}

// Baseline records the counters of merging's slot, which continue from one use to the next, as they
// are when this use begins; nil: all 0.
func (t *Table) Baseline(m *Merging, base []p4rt.MemberCounts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.base = base
}

// An ownership says whose epochs a switch's registers hold. It is in the agent's state file and in
// the switch's settings, which are always written after the file.
type ownership struct {
	Owner   uint64 // random; a new one whenever the agent clears the registers
	Numbers uint64 // all uses of slots since then have lower numbers
	// Switch is whose state the file is. Files of former releases have none, nor do the settings.
	Switch string `json:",omitempty"`
}

// slots are the switch's merging slots. Uses of slots are numbered: number u is slot u mod 16384 in
// epoch ⌊u/16384⌋ + 1. A number is not used again while a switch's registers may have it. All under
// Table.mu.
type slots struct {
	name  string // the switch's
	store Store
	ownership
	next, end uint64 // of the block of numbers in use
	used      map[uint16]*Merging
	// by the entries that drop answers that bypass merging; groups may share one for a while
	bypasses map[switchspec.Key][]*Merging
}

const (
	slotCount = switchspec.MaxSlot + 1
	slotBlock = 4096              // numbers are reserved at once
	useEnd    = slotCount * 65535 // that of the first use without an epoch
)

// The agent's bucket in its state holds one pair.
const ownBucket, ownKey = "agent", "ownership"

// loadSlots reads the owner from the state file of the agent of a switch; a new file gets one.
func loadSlots(ctx context.Context, s Store, name string) (*slots, error) {
	x := &slots{name: name, store: s, ownership: ownership{Numbers: 1}, used: map[uint16]*Merging{}, bypasses: map[switchspec.Key][]*Merging{}}
	for _, value := range s.Load(ownBucket) {
		err := json.Unmarshal(value, &x.ownership)
		if err == nil && (x.Owner == 0 || x.Numbers == 0 || x.Numbers > useEnd) {
			err = fmt.Errorf("owner %#x, numbers to %d", x.Owner, x.Numbers)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRecord, err)
		}
		switch x.Switch {
		case name:
			return x, nil
		case "":
			return x, x.setOwnership(ctx, x.ownership)
		}
		return nil, fmt.Errorf("%w %s, and this is the agent of %s", ErrOther, x.Switch, name)
	}
	return x, x.setOwnership(ctx, ownership{Owner: newOwner(), Numbers: 1})
}

func newOwner() uint64 { return 1 + rand.Uint64N(1<<64-1) }

// setOwnership stores an ownership, with further edits, and then adopts it.
func (s *slots) setOwnership(ctx context.Context, next ownership, edits ...store.Edit) error {
	next.Switch = s.name
	edits = append(edits, store.Edit{Bucket: ownBucket, Key: []byte(ownKey), Value: store.Encode(next)})
	err := commit(ctx, s.store, edits...)
	if err == nil {
		s.ownership = next
	}
	return err
}

// take assigns a slot to merging, in an epoch that the slot's registers do not have. After
// errUsedUp, once in 2^30 uses, the registers must be cleared.
func (s *slots) take(m *Merging) error {
	for range slotCount {
		if s.next == s.end {
			if err := s.reserve(); err != nil {
				return err
			}
		}
		u := s.next
		s.next++
		if s.used[slotOf(u)] == nil {
			s.keep(m, u)
			return nil
		}
	}
	return fmt.Errorf("%w: all %d slots for merging are in use", ErrLimit, slotCount)
}

var errUsedUp = fmt.Errorf("%w: all epochs of merging have been used; the program is being pushed again", ErrNotReady)

// reserve reserves a block of numbers, first in the agent's state file; the first entry that uses
// it also updates the switch's settings.
func (s *slots) reserve() error {
	first := s.Numbers
	if first == useEnd {
		if err := s.setOwnership(context.Background(), ownership{Owner: newOwner(), Numbers: 1}); err != nil {
			return err
		}
		return errUsedUp
	}
	if err := s.setOwnership(context.Background(), ownership{Owner: s.Owner, Numbers: min(first+slotBlock, useEnd)}); err != nil {
		return err
	}
	s.next, s.end = first, s.Numbers
	return nil
}

// keep records merging under the number of a use.
func (s *slots) keep(m *Merging, use uint64) {
	m.use = use
	s.used[m.Slot()] = m
	k := m.bypass().Key()
	s.bypasses[k] = append(s.bypasses[k], m)
}

// give frees a slot whose entities have been deleted, or were never written.
func (s *slots) give(m *Merging) {
	if m.use == 0 || s.used[m.Slot()] != m {
		return
	}
	delete(s.used, m.Slot())
	k := m.bypass().Key()
	left := slices.DeleteFunc(s.bypasses[k], func(o *Merging) bool { return o == m })
	if s.bypasses[k] = left; len(left) == 0 {
		delete(s.bypasses, k)
	}
}

// shared reports whether another group needs merging's bypass.
func (s *slots) shared(m *Merging) bool {
	return slices.ContainsFunc(s.bypasses[m.bypass().Key()], func(o *Merging) bool { return o != m && !o.leaving })
}

func slotOf(use uint64) uint16 { return uint16(use % slotCount) } //nolint:gosec // below slotCount

func epochOf(use uint64) uint16 { return uint16(use/slotCount) + 1 } //nolint:gosec // use is below useEnd

// useOf returns the number of the use that a switch's merge group belongs to.
func useOf(g switchspec.MergeGroup) uint64 {
	return uint64(g.Epoch-1)*slotCount + uint64(g.Slot)
}

func commit(ctx context.Context, file Store, edits ...store.Edit) error {
	if err := file.Commit(ctx, edits...); err != nil {
		return fmt.Errorf("%w: the agent's state cannot be stored: %w", ErrNotReady, err)
	}
	return nil
}
