package fastpath

import (
	"time"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// A group's merging state has one owner: the kernel while it processes packets, else the pipeline's
// registers. It moves while no packet is merged: the pipeline's packets wait, and in the kernel
// each answer checks, under the lock of its slot, whether tables are being changed.

// slots are those in which groups have merged.
type slots struct {
	entries map[uint32]*slot
	fresh   []uint32                 // slots whose state is still in the pipeline
	sets    map[uint32][]registerSet // registers written by the control plane, for the kernel
}

// A slot holds the part of the kernel's counts that the pipeline's counters already have.
type slot struct {
	entry  *pipeline.Entry // of merge_groups; nil: none now
	counts [bpf.MaxMembers][bpf.Kinds]uint64
	told   uint64 // answers
}

type registerSet struct {
	r *pipeline.Register
	i int
}

func newSlots() slots { return slots{entries: map[uint32]*slot{}, sets: map[uint32][]registerSet{}} }

// merges records that a group merges in a slot.
func (f *Fast) merges(e *pipeline.Entry) {
	n := key32(e, 0)
	if n >= bpf.Slots {
		return
	}
	s := f.slots.entries[n]
	if s == nil {
		s = &slot{}
		f.slots.entries[n] = s
		f.slots.fresh = append(f.slots.fresh, n)
	}
	if s.entry != e {
		f.look(n) // earlier counts are not its own
		s.entry = e
	}
}

// left records that a group no longer merges.
func (f *Fast) left(e *pipeline.Entry) {
	if s := f.slotOfEntry(e); s != nil {
		f.look(key32(e, 0))
		s.entry = nil
	}
}

// slotOfEntry returns the slot of an entry of merge_groups; nil: the entry is not of that table.
func (f *Fast) slotOfEntry(e *pipeline.Entry) *slot {
	if len(e.Key) == 1 {
		if s := f.slots.entries[key32(e, 0)]; s != nil && s.entry == e {
			return s
		}
	}
	return nil
}

// look updates the pipeline's counters, and the registers if the kernel owns them, from a slot.
func (f *Fast) look(n uint32) {
	s := f.slots.entries[n]
	if s == nil {
		return
	}
	now, err := f.k.slot(n)
	if err != nil {
		f.fail(err)
		return
	}
	for i := range bpf.MaxMembers {
		for k, c := range f.plan.kinds {
			if d := now.Counts[i][k] - s.counts[i][k]; d > 0 {
				c.Add(int(n)*bpf.MaxMembers+i, pipeline.Counts{Packets: d})
			}
		}
	}
	if s.entry != nil {
		s.entry.Add(pipeline.Counts{Packets: now.Answers - s.told})
	}
	s.counts, s.told = now.Counts, now.Answers
	if f.active && f.slots.sets[n] == nil {
		f.registers(n, &now)
	}
}

// registers copies a slot's state to the pipeline.
func (f *Fast) registers(n uint32, s *bpf.Slot) {
	for i, r := range s.Acked {
		f.plan.acked.Refresh(int(n)*bpf.MaxMembers+i, recordWord(r))
	}
	f.plan.passed.Refresh(int(n), recordWord(s.Passed))
	at := uint64(0)
	if s.CNPAt != 0 {
		at = uint64(max(time.Duration(s.CNPAt)-f.skew, time.Microsecond) / time.Microsecond) //nolint:gosec // a time
	}
	f.plan.cnpAt.Refresh(int(n), at)
}

// state copies a slot's state to the kernel, which keeps its counters.
func (f *Fast) state(n uint32) error {
	set := []registerSet{{f.plan.passed, int(n)}, {f.plan.cnpAt, int(n)}}
	for i := range bpf.MaxMembers {
		set = append(set, registerSet{f.plan.acked, int(n)*bpf.MaxMembers + i})
	}
	return f.set(n, set)
}

// set copies some of a slot's registers to the kernel.
func (f *Fast) set(n uint32, list []registerSet) error {
	s, err := f.k.slot(n)
	if err != nil {
		return err
	}
	for _, x := range list {
		switch v := x.r.Cell(x.i); x.r {
		case f.plan.acked:
			s.Acked[x.i%bpf.MaxMembers] = recordOf(v)
		case f.plan.passed:
			s.Passed = recordOf(v)
		case f.plan.cnpAt:
			if s.CNPAt = 0; v != 0 {
				s.CNPAt = uint64(time.Duration(v)*time.Microsecond + f.skew) //nolint:gosec // a time
			}
		}
	}
	return f.k.putSlot(n, &s)
}

// The word of a register: epoch, MSN, PSN.
func recordWord(r bpf.Record) uint64 { return uint64(r.Epoch)<<48 | uint64(r.MSN)<<24 | uint64(r.PSN) }

func recordOf(w uint64) bpf.Record {
	const mask = 1<<24 - 1
	return bpf.Record{Epoch: uint32(w >> 48), MSN: uint32(w >> 24 & mask), PSN: uint32(w & mask)} //nolint:gosec // the parts of a word
}

// slotOf returns the slot to which a register's cell belongs, and false if the register is not one
// of merging.
func (f *Fast) slotOf(r *pipeline.Register, i int) (uint32, bool) {
	switch r {
	case f.plan.acked:
		return uint32(i / bpf.MaxMembers), true //nolint:gosec // few
	case f.plan.passed, f.plan.cnpAt:
		return uint32(i), true //nolint:gosec // few
	}
	return 0, false
}

// RegisterUsed implements pipeline.Offload.
func (f *Fast) RegisterUsed(r *pipeline.Register, i int) {
	if n, ours := f.slotOf(r, i); ours && f.active {
		f.look(n)
	}
}

// RegisterSet implements pipeline.Offload.
func (f *Fast) RegisterSet(r *pipeline.Register, i int) {
	if n, ours := f.slotOf(r, i); ours && f.active && f.slots.entries[n] != nil {
		f.slots.sets[n] = append(f.slots.sets[n], registerSet{r, i})
	}
}

// CounterUsed implements pipeline.Offload.
func (f *Fast) CounterUsed(c *pipeline.Counter, i int) {
	for _, k := range f.plan.kinds {
		if c == k {
			f.look(uint32(i / bpf.MaxMembers)) //nolint:gosec // few
			return
		}
	}
	if (c == f.plan.dropsIn || c == f.plan.dropsOut) && i < len(atIngress) && atIngress[i] == (c == f.plan.dropsIn) {
		now := f.read("drops", uint32(i)) //nolint:gosec // few
		was := &f.dropped[i]
		c.Add(i, pipeline.Counts{Packets: now.Packets - was.Packets, Bytes: now.Bytes - was.Bytes})
		*was = now
	}
}

// Counting implements pipeline.Offload.
func (f *Fast) Counting(e *pipeline.Entry) {
	f.plan.cells.count(e)
	if f.slotOfEntry(e) != nil {
		f.look(key32(e, 0))
	}
}
