package p4rt

import (
	"context"
	"fmt"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// A Count is what a counter has counted since the pipeline was pushed, or the
// entry inserted.
type Count struct{ Packets, Bytes uint64 }

// A Counter is one cell of a counter of dropped packets.
type Counter struct {
	Name   string // in the P4Info: "ingress.drops" or "egress.drops"
	Reason string // of bmv2.DropReasons
	Count
}

// MemberCounts are the answers of one member of a merge group, before merging.
type MemberCounts struct{ ACKs, SequenceNAKs, RNRNAKs, FatalNAKs, CNPs uint64 }

// Since is what was counted after an earlier reading.
func (c MemberCounts) Since(was MemberCounts) MemberCounts {
	return MemberCounts{c.ACKs - was.ACKs, c.SequenceNAKs - was.SequenceNAKs, c.RNRNAKs - was.RNRNAKs,
		c.FatalNAKs - was.FatalNAKs, c.CNPs - was.CNPs}
}

var (
	dropCounters   = [...]string{"ingress.drops", "egress.drops"}
	memberCounters = [...]string{"egress.ack_merge.acks", "egress.ack_merge.sequence_naks", "egress.ack_merge.rnr_naks",
		"egress.ack_merge.fatal_naks", "egress.ack_merge.cnps"}
)

// A cell is one of those of a counter that is indexed.
type cell struct {
	counter uint32
	index   int64
}

// ReadCounters returns the dropped packets of ingress, then egress, in the order of
// bmv2.DropReasons. Any session can read. Errors wrap ErrForeign if the switch
// answers otherwise than it was asked.
func (s *Session) ReadCounters(ctx context.Context) ([]Counter, error) {
	var out []Counter
	var cells []cell
	for _, name := range dropCounters {
		for i, reason := range bmv2.DropReasons {
			out = append(out, Counter{Name: name, Reason: reason})
			cells = append(cells, cell{s.c.schema.counters[name], int64(i)})
		}
	}
	counts, err := s.cells(ctx, cells)
	if err != nil {
		return nil, fmt.Errorf("p4rt: reading the counters of drops: %w", err)
	}
	for i, c := range cells {
		out[i].Count = counts[c]
	}
	return out, nil
}

// ReadMemberCounters returns the counts of the members of the merge group in a
// slot, since the pipeline was pushed: a new group in the slot counts on from the
// old one's. Errors are as those of ReadCounters, or wrap switchspec.ErrInvalid if
// there is no such slot.
func (s *Session) ReadMemberCounters(ctx context.Context, slot uint16) (out [switchspec.MaxMembers]MemberCounts, err error) {
	if slot > switchspec.MaxSlot {
		return out, fmt.Errorf("p4rt: %w: merge slot %d; the last is %d", switchspec.ErrInvalid, slot, switchspec.MaxSlot)
	}
	var cells []cell
	for _, name := range memberCounters {
		for i := range int64(switchspec.MaxMembers) {
			cells = append(cells, cell{s.c.schema.counters[name], switchspec.MaxMembers*int64(slot) + i})
		}
	}
	counts, err := s.cells(ctx, cells)
	if err != nil {
		return out, fmt.Errorf("p4rt: reading the counters of merge slot %d: %w", slot, err)
	}
	for i := range out {
		m := &out[i]
		for n, to := range [...]*uint64{&m.ACKs, &m.SequenceNAKs, &m.RNRNAKs, &m.FatalNAKs, &m.CNPs} {
			*to = counts[cells[n*switchspec.MaxMembers+i]].Packets
		}
	}
	return out, nil
}

// ackedRegister holds the last answer of each member.
const ackedRegister = "egress.ack_merge.acked"

// Acked is the last acknowledgement of a member: of which use of the slot (0: there was
// none), and the PSN.
type Acked struct {
	Epoch uint16
	PSN   uint32
}

// ReadAcked returns the last acknowledgements of the members of the merge group in a slot.
// known is false if the switch does not let registers be read, as bmv2 does not. Errors are
// as those of ReadMemberCounters.
func (s *Session) ReadAcked(ctx context.Context, slot uint16) (out [switchspec.MaxMembers]Acked, known bool, err error) {
	if slot > switchspec.MaxSlot {
		return out, false, fmt.Errorf("p4rt: %w: merge slot %d; the last is %d", switchspec.ErrInvalid, slot, switchspec.MaxSlot)
	}
	first := switchspec.MaxMembers * int64(slot)
	var ask []*p4.Entity
	for i := range int64(switchspec.MaxMembers) {
		ask = append(ask, &p4.Entity{Entity: &p4.Entity_RegisterEntry{RegisterEntry: &p4.RegisterEntry{RegisterId: s.c.schema.acked, Index: &p4.Index{Index: first + i}}}})
	}
	answers := 0
	err = s.read(ctx, ask, func(e *p4.Entity) error {
		x := e.GetRegisterEntry()
		i := x.GetIndex().GetIndex() - first
		v, err := value(x.GetData().GetBitstring(), 64)
		if err == nil && (i < 0 || i >= switchspec.MaxMembers) {
			err = fmt.Errorf("%w: cell %d of a register, which was not asked for", ErrForeign, first+i)
		}
		if err == nil {
			answers++
			out[i] = Acked{uint16(v >> 48), uint32(v & 0xffffff)} //nolint:gosec // 16 bits are left
		}
		return err
	})
	if refusal(err) == codes.Unimplemented {
		return out, false, nil
	}
	if err == nil && answers != switchspec.MaxMembers {
		err = fmt.Errorf("%w: %d answers for %d cells of a register", ErrForeign, answers, switchspec.MaxMembers)
	}
	if err != nil {
		return out, false, fmt.Errorf("p4rt: reading the answers in merge slot %d: %w", slot, err)
	}
	return out, true, nil
}

// cells reads cells; there are counts of all of them, or an error.
func (s *Session) cells(ctx context.Context, cells []cell) (map[cell]Count, error) {
	out := make(map[cell]Count, len(cells))
	ask := make([]*p4.Entity, 0, len(cells))
	for _, c := range cells {
		ask = append(ask, &p4.Entity{Entity: &p4.Entity_CounterEntry{
			CounterEntry: &p4.CounterEntry{CounterId: c.counter, Index: &p4.Index{Index: c.index}}}})
	}
	err := s.read(ctx, ask, func(e *p4.Entity) error {
		x := e.GetCounterEntry()
		n, err := count(x.GetData())
		out[cell{x.GetCounterId(), x.GetIndex().GetIndex()}] = n
		return err
	})
	for _, c := range cells {
		if _, ok := out[c]; !ok && err == nil {
			err = fmt.Errorf("%w: no answer for cell %d of counter %#x", ErrForeign, c.index, c.counter)
		}
	}
	return out, err
}

func count(d *p4.CounterData) (Count, error) {
	if d == nil || d.GetPacketCount() < 0 || d.GetByteCount() < 0 {
		return Count{}, fmt.Errorf("%w: a counter with %v", ErrForeign, d)
	}
	return Count{uint64(d.GetPacketCount()), uint64(d.GetByteCount())}, nil //nolint:gosec // not negative
}

// ReadDirect returns what was counted by an entry: of a Match the group's packets,
// of a Replica the copies, of a Region the WRITEs translated, of a MergeGroup the
// answers before merging (no bytes), of an ECNPort the candidates (no bytes); nothing
// if the switch does not have the entry. Of the entity only what identifies it counts.
// Any session can read. Errors wrap switchspec.ErrInvalid if there are no counters for
// such entities.
func (s *Session) ReadDirect(ctx context.Context, e switchspec.Entity) (c Count, err error) {
	x, err := s.c.schema.encode(e)
	if err != nil {
		return c, err
	}
	te := x.GetTableEntry()
	if !s.c.schema.direct[te.GetTableId()] {
		return c, fmt.Errorf("p4rt: %w: nothing is counted of a %v", switchspec.ErrInvalid, e.Key().Kind())
	}
	te.Action = nil
	ask := &p4.Entity{Entity: &p4.Entity_DirectCounterEntry{DirectCounterEntry: &p4.DirectCounterEntry{TableEntry: te}}}
	err = s.read(ctx, []*p4.Entity{ask}, func(e *p4.Entity) error {
		c, err = count(e.GetDirectCounterEntry().GetData())
		return err
	})
	switch refusal(err) {
	case codes.OK, codes.NotFound, codes.InvalidArgument: // the last two if the entry is missing: by the embedded switch, and by bmv2
		return c, nil
	}
	return c, fmt.Errorf("p4rt: reading the counter of an entry: %w", err)
}

// refusal is the code of a Read that failed: by itself, or of what was asked for
// first among what failed.
func refusal(err error) codes.Code {
	for _, d := range status.Convert(err).Details() {
		if e, ok := d.(*p4.Error); ok && e.GetCanonicalCode() != int32(codes.OK) {
			return codes.Code(e.GetCanonicalCode()) //nolint:gosec // a code
		}
	}
	return status.Code(err)
}
