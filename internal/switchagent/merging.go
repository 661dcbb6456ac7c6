package switchagent

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// merging is how a group's answers become one receiver's. All under Agent.mu.
type merging struct {
	slot, epoch uint16
	psn         uint32
	learn       bool
	members     []bifurcation.MergeMember // those that left too: their late answers are to be dropped
	current     uint16                    // bits of members
	source      netip.Addr
	senderQPN   uint32
	cnpGap      uint32 // µs
}

// newMerging is that of a group that begins at a PSN. It has no slot yet.
func newMerging(g bifurcation.Group, cnpGap uint32) *merging {
	m := bifurcation.MergeOf(g)
	return &merging{psn: m.InitialPSN, members: m.Members, current: m.Current, source: m.Source, senderQPN: m.SenderQPN, cnpGap: cnpGap}
}

func (m *merging) group() switchspec.MergeGroup {
	return switchspec.MergeGroup{Slot: m.slot, Members: m.current, Epoch: m.epoch, InitialPSN: m.psn, Learn: m.learn,
		Source: m.source, SenderQPN: m.senderQPN, CNPGap: m.cnpGap}
}

func (m *merging) entities() []switchspec.Entity {
	out := make([]switchspec.Entity, 0, len(m.members)+1)
	out = append(out, m.group())
	for _, x := range m.members {
		out = append(out, switchspec.MergeMember{Src: x.Src, Dst: x.Dst, DestQP: x.QPN, Slot: m.slot, Index: x.Index})
	}
	return out
}

// without takes receivers out of what answers are waited for.
func (m *merging) without(addrs []netip.Addr) {
	for _, x := range m.members {
		if slices.Contains(addrs, x.Src) {
			m.current &^= 1 << x.Index
		}
	}
}

// useSlot gives merging a slot, in an epoch that the slot's registers do not know.
// The caller has Agent.mu.
//
// Uses of slots are numbered, for the life of the agent's state: number u is slot
// u mod 16384 in epoch ⌊u/16384⌋ mod 65535 + 1. So registers hold the epoch of the
// slot's last use, which is an earlier number.
func (a *Agent) useSlot(m *merging) error {
	const slots = switchspec.MaxSlot + 1
	for range slots {
		if a.uses.next == a.uses.end {
			first, err := a.store.Reserve("slots", slotBlock)
			if err != nil {
				return fmt.Errorf("%w: the agent's state cannot be stored: %w", ErrNotReady, err)
			}
			a.uses.next, a.uses.end = first, first+slotBlock
		}
		u := a.uses.next
		a.uses.next++
		slot := uint16(u % slots) //nolint:gosec // below slots
		if a.slots[slot] == nil {
			m.slot, m.epoch = slot, uint16(u/slots%0xffff)+1 //nolint:gosec // 1 to 65535
			a.slots[slot] = m
			return nil
		}
	}
	return fmt.Errorf("%w: all %d slots for merging are in use", ErrLimit, slots)
}

// slotBlock is how many uses of slots are reserved at once.
const slotBlock = 4096

// freeSlot gives a slot back whose entities are gone, or were never there.
func (a *Agent) freeSlot(m *merging) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.slots[m.slot] == m {
		delete(a.slots, m.slot)
	}
}

// mergePut is the edit that puts merging on the switch as it is then.
func (a *Agent) mergePut(m *merging) edit {
	return func(d *draft) error {
		a.mu.Lock()
		list := m.entities()
		a.mu.Unlock()
		return puts(list, nil)(d)
	}
}

// mergeDelete is the edit that takes it off, but for members that another group or
// another slot has taken over.
func (a *Agent) mergeDelete(m *merging) edit {
	return func(d *draft) error {
		a.mu.Lock()
		list := m.entities()
		a.mu.Unlock()
		for _, e := range list {
			if member, ok := e.(switchspec.MergeMember); ok {
				now, there := d.want.Find(member.Key())
				if !there || now.(switchspec.MergeMember).Slot != member.Slot {
					continue
				}
			}
			d.delete(e.Key())
		}
		return nil
	}
}

// renewMerging is called when a switch was found and before it gets what it lacks:
// groups whose merging it no longer has get it under a new epoch, and nothing is
// passed on until each member has been heard of, as nobody knows where they are.
func (a *Agent) renewMerging(have, want *switchspec.State) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var lost []switchspec.MergeGroup
	for g := range switchspec.Of[switchspec.MergeGroup](want) {
		if old, ok := have.Find(g.Key()); !ok || old.(switchspec.MergeGroup).Epoch != g.Epoch {
			lost = append(lost, g)
		}
	}
	for _, g := range lost {
		var was []switchspec.Key
		for x := range switchspec.Of[switchspec.MergeMember](want) {
			if x.Slot == g.Slot {
				was = append(was, x.Key())
			}
		}
		for _, k := range append(was, g.Key()) {
			want.Delete(k)
		}
		m := a.slots[g.Slot]
		if m == nil || m.epoch != g.Epoch {
			continue // an edit that takes it away is on its way
		}
		if err := a.useSlot(m); err != nil {
			return err
		}
		delete(a.slots, g.Slot)
		m.learn = true
		if err := want.Put(m.entities()...); err != nil {
			return err
		}
	}
	return nil
}
