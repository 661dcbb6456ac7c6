package switchagent

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// An ownership says whose epochs a switch's registers hold. It is in the agent's state file and in
// the switch's settings, which are always written after the file.
type ownership struct {
	Owner   uint64 // random; a new one whenever the agent clears the registers
	Numbers uint64 // all uses of slots since then have lower numbers
}

// slots are the switch's merging slots. Uses of slots are numbered: number u is slot u mod 16384 in
// epoch ⌊u/16384⌋ + 1. A number is not used again while a switch's registers may have it. All under
// Agent.mu.
type slots struct {
	store Store
	ownership
	next, end uint64 // of the block of numbers in use
	used      map[uint16]*merging
	// by the entries that drop answers that bypass merging; groups may share one for a while
	bypasses map[switchspec.Key][]*merging
}

const (
	slotCount = switchspec.MaxSlot + 1
	slotBlock = 4096              // numbers are reserved at once
	useEnd    = slotCount * 65535 // that of the first use without an epoch
)

// The agent's bucket in its state holds one pair.
const ownBucket, ownKey = "agent", "ownership"

// loadSlots reads the owner from the agent's state file; a new file gets one.
func loadSlots(ctx context.Context, s Store) (*slots, error) {
	x := newSlots(s)
	for _, value := range s.Load(ownBucket) {
		err := json.Unmarshal(value, &x.ownership)
		if err == nil && (x.Owner == 0 || x.Numbers == 0 || x.Numbers > useEnd) {
			err = fmt.Errorf("owner %#x, numbers to %d", x.Owner, x.Numbers)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: the state holds a record that cannot be read (%w); move the file away to begin anew", ErrConfig, err)
		}
		return x, nil
	}
	return x, x.setOwnership(ctx, ownership{newOwner(), 1})
}

// merging is the state of a group's merging. All under Agent.mu.
type merging struct {
	of        *group
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
func newMerging(g *group) *merging {
	m := bifurcation.MergeOf(g.Group)
	return &merging{of: g, psn: m.InitialPSN, members: m.Members, current: m.Current, source: m.Source, senderQPN: m.SenderQPN,
		cnpGap: uint32(g.cnpGap.Microseconds())} //nolint:gosec // checked at the border
}

func (m *merging) slot() uint16 { return slotOf(m.use) }

func (m *merging) group() switchspec.MergeGroup {
	return switchspec.MergeGroup{Slot: m.slot(), Members: m.current, Epoch: epochOf(m.use), InitialPSN: m.psn, Learn: m.learn,
		Source: m.source, SenderQPN: m.senderQPN, CNPGap: m.cnpGap}
}

func (m *merging) bypass() switchspec.Bypass {
	return switchspec.Bypass{Src: m.source, Dst: m.of.Source, QPN: m.senderQPN}
}

func (m *merging) entities() []switchspec.Entity {
	out := make([]switchspec.Entity, 0, len(m.members)+2)
	out = append(out, m.bypass(), m.group())
	for _, x := range m.members {
		out = append(out, switchspec.MergeMember{Src: x.Src, Dst: x.Dst, DestQP: x.QPN, Slot: m.slot(), Index: x.Index})
	}
	return out
}

// without removes receivers from the members whose answers merging waits for.
func (m *merging) without(addrs []netip.Addr) {
	for _, x := range m.members {
		if slices.Contains(addrs, x.Src) {
			m.current &^= 1 << x.Index
		}
	}
}

func newSlots(s Store) *slots {
	return &slots{store: s, ownership: ownership{Numbers: 1}, used: map[uint16]*merging{}, bypasses: map[switchspec.Key][]*merging{}}
}

func newOwner() uint64 { return 1 + rand.Uint64N(1<<64-1) }

// setOwnership stores an ownership, with further edits, and then adopts it.
func (s *slots) setOwnership(ctx context.Context, next ownership, edits ...store.Edit) error {
	edits = append(edits, store.Edit{Bucket: ownBucket, Key: []byte(ownKey), Value: store.Encode(next)})
	if err := s.store.Commit(ctx, edits...); err != nil {
		return fmt.Errorf("%w: the agent's state cannot be stored: %w", ErrNotReady, err)
	}
	s.ownership = next
	return nil
}

// take assigns a slot to merging, in an epoch that the slot's registers do not have. After
// errUsedUp, once in 2^30 uses, the registers must be cleared.
func (s *slots) take(m *merging) error {
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
		if err := s.setOwnership(context.Background(), ownership{newOwner(), 1}); err != nil {
			return err
		}
		return errUsedUp
	}
	if err := s.setOwnership(context.Background(), ownership{s.Owner, min(first+slotBlock, useEnd)}); err != nil {
		return err
	}
	s.next, s.end = first, s.Numbers
	return nil
}

// keep records merging under the number of a use.
func (s *slots) keep(m *merging, use uint64) {
	m.use = use
	s.used[m.slot()] = m
	k := m.bypass().Key()
	s.bypasses[k] = append(s.bypasses[k], m)
}

// give frees a slot whose entities have been deleted, or were never written.
func (s *slots) give(m *merging) {
	if m.use == 0 || s.used[m.slot()] != m {
		return
	}
	delete(s.used, m.slot())
	k := m.bypass().Key()
	left := slices.DeleteFunc(s.bypasses[k], func(o *merging) bool { return o == m })
	if s.bypasses[k] = left; len(left) == 0 {
		delete(s.bypasses, k)
	}
}

// shared reports whether another group needs merging's bypass.
func (s *slots) shared(m *merging) bool {
	return slices.ContainsFunc(s.bypasses[m.bypass().Key()], func(o *merging) bool { return o != m && !o.leaving })
}

func slotOf(use uint64) uint16 { return uint16(use % slotCount) } //nolint:gosec // below slotCount

func epochOf(use uint64) uint16 { return uint16(use/slotCount) + 1 } //nolint:gosec // use is below useEnd

// useOf returns the number of the use that a switch's merge group belongs to.
func useOf(g switchspec.MergeGroup) uint64 {
	return uint64(g.Epoch-1)*slotCount + uint64(g.Slot)
}
