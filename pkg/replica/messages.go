package replica

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// A message is a message of the core with its content.
type message struct {
	core.Message
	entries []item  // of a Push
	pieces  []piece // of a Chunk
	// fetch reads an entry whose data is not in memory.
	fetch func(index uint64) (wal.Entry, error)
}

// A piece has bytes of the store. Bytes between the pieces of a Chunk are zero.
type piece struct {
	off  int64
	data []byte
}

func memberTo(m core.Member) *replicav1.Member {
	return &replicav1.Member{Id: uint32(m.ID), Incarnation: m.Incarnation}
}

func versionTo(v core.Version) *replicav1.Version {
	return &replicav1.Version{Epoch: v.Epoch, Index: v.Index}
}

func versionFrom(v *replicav1.Version) core.Version {
	return core.Version{Epoch: v.GetEpoch(), Index: v.GetIndex()}
}

// each converts the elements of a list.
func each[T, U any](list []T, convert func(T) U) (out []U) {
	for _, v := range list {
		out = append(out, convert(v))
	}
	return out
}

// encode converts a message to the protocol's. It copies the content. It fails if some of the
// content no longer exists.
func (m *message) encode() (*replicav1.Message, error) {
	out := &replicav1.Message{Volume: m.Volume, From: memberTo(m.From), To: memberTo(m.To), Interval: &replicav1.Interval{Since: m.Interval.Since, Round: m.Interval.Round}}
	switch b := m.Body.(type) {
	case core.Lease:
		out.Body = &replicav1.Message_Lease{Lease: &replicav1.Lease{Epoch: b.Epoch, SentNs: int64(b.Sent), Commit: b.Commit, Stable: b.Stable, Hurry: b.Hurry}}
	case core.Push:
		p := &replicav1.Push{Prev: versionTo(b.Prev), Runs: each(b.Runs, versionTo), Reset_: b.Reset, Have: b.Have}
		for i := range m.entries {
			e := &m.entries[i].Entry
			if !m.entries[i].resident() {
				there, err := m.fetch(e.Version.Index)
				if err != nil {
					return nil, err
				}
				if there.Version != e.Version {
					return nil, errGone
				}
				e = &there
			}
			p.Entries = append(p.Entries, append(e.AppendHeader(make([]byte, 0, wal.HeaderSize+len(e.Data))), e.Data...))
		}
		out.Body = &replicav1.Message_Push{Push: p}
	case core.Start:
		out.Body = &replicav1.Message_Start{Start: &replicav1.Start{Head: versionTo(b.Head)}}
	case core.Chunk:
		c := &replicav1.Chunk{Cursor: b.Cursor, Next: b.Next, Applied: b.Applied}
		c.Pieces = each(m.pieces, func(p piece) *replicav1.Piece { return &replicav1.Piece{Offset: p.off, Data: p.data} })
		out.Body = &replicav1.Message_Chunk{Chunk: c}
	case core.Report:
		out.Body = &replicav1.Message_Report{Report: &replicav1.Report{SentNs: int64(b.Sent), Log: each(b.Log, versionTo), Applying: b.Applying,
			Received: b.Received, Durable: b.Durable, Started: b.Started, Backfill: uint32(b.Backfill), Cursor: b.Cursor}}
	case core.Notify:
		out.Body = &replicav1.Message_Notify{Notify: &replicav1.Notify{Incarnation: b.Incarnation, Epoch: b.Epoch, Born: b.Born,
			LastEpochStarted: b.LastEpochStarted, Applying: b.Applying, Backfilling: b.Backfilling, Head: versionTo(b.Head)}}
	}
	return out, nil
}

var (
	errBody = errors.New("a message of an unknown kind: a newer program has sent it")
	errGone = errors.New("the log has another entry there by now")
)

// decode reads a message of the protocol. Entries get their data from buffers, for which it waits.
func decode(ctx context.Context, m *replicav1.Message, buffers pool) (out message, err error) {
	out = message{Message: core.Message{Volume: m.GetVolume(), From: memberFrom(m.GetFrom()), To: memberFrom(m.GetTo()),
		Interval: core.Interval{Since: m.GetInterval().GetSince(), Round: m.GetInterval().GetRound()}}}
	switch b := m.GetBody().(type) {
	case *replicav1.Message_Lease:
		out.Body = core.Lease{Epoch: b.Lease.GetEpoch(), Sent: time.Duration(b.Lease.GetSentNs()), Commit: b.Lease.GetCommit(), Stable: b.Lease.GetStable(), Hurry: b.Lease.GetHurry()}
	case *replicav1.Message_Push:
		err = out.push(ctx, b.Push, buffers)
	case *replicav1.Message_Start:
		out.Body = core.Start{Head: versionFrom(b.Start.GetHead())}
	case *replicav1.Message_Chunk:
		err = out.chunk(b.Chunk)
	case *replicav1.Message_Report:
		r := b.Report
		out.Body = core.Report{Sent: time.Duration(r.GetSentNs()), Log: each(r.GetLog(), versionFrom), Applying: r.GetApplying(), Received: r.GetReceived(),
			Durable: r.GetDurable(), Started: r.GetStarted(), Backfill: core.Backfill(min(r.GetBackfill(), math.MaxUint8)), Cursor: r.GetCursor()}
	case *replicav1.Message_Notify:
		n := b.Notify
		out.Body = core.Notify{HardState: core.HardState{Incarnation: n.GetIncarnation(), Epoch: n.GetEpoch(), Born: n.GetBorn(),
			LastEpochStarted: n.GetLastEpochStarted(), Applying: n.GetApplying(), Backfilling: n.GetBackfilling()}, Head: versionFrom(n.GetHead())}
	default:
		err = errBody
	}
	if err != nil {
		out.release()
	}
	return out, err
}

func memberFrom(m *replicav1.Member) core.Member {
	return core.Member{ID: core.ID(m.GetId()), Incarnation: m.GetIncarnation()}
}

// push reads a Push. The entries must be those that Prev and Runs name. If there are more than this
// program sends, and memory is short, the Push is cut to its first entries: the others are sent
// again.
func (m *message) push(ctx context.Context, p *replicav1.Push, buffers pool) error {
	b := core.Push{Prev: versionFrom(p.GetPrev()), Runs: each(p.GetRuns(), versionFrom), Reset: p.GetReset_(), Have: p.GetHave()}
	m.Body = b
	runs, at := b.Runs, b.Prev.Index
	bytes := 0
	buffer := func(n int) *Buffer {
		if bytes += buffers.class(n).size; bytes > maxPush && len(m.entries) > 0 {
			return buffers.try(n) // there may never be enough buffers for all of them
		}
		b, _ := buffers.get(ctx, n) // nil: there is none
		return b
	}
	for _, raw := range p.GetEntries() {
		i, err := parseEntry(raw, buffer)
		if errors.Is(err, errNoMemory) && len(m.entries) > 0 {
			b.Runs = cutRuns(b.Runs, at)
			m.Body = b
			return nil
		}
		if err != nil {
			return err
		}
		m.entries = append(m.entries, i)
		at++
		for len(runs) > 0 && runs[0].Index < at {
			runs = runs[1:]
		}
		if len(runs) == 0 || i.Version != (core.Version{Epoch: runs[0].Epoch, Index: at}) {
			return fmt.Errorf("entry %v with a message for others", i.Version)
		}
	}
	if !b.Reset && len(b.Runs) > 0 && b.Runs[len(b.Runs)-1].Index != at {
		return fmt.Errorf("%d entries after %v with a message for others", len(p.GetEntries()), b.Prev)
	}
	return nil
}

// cutRuns leaves the entries up to an index of runs, which has more.
func cutRuns(runs []core.Version, index uint64) (out []core.Version) {
	for _, r := range runs {
		out = append(out, core.Version{Epoch: r.Epoch, Index: min(r.Index, index)})
		if r.Index >= index {
			break
		}
	}
	return out
}

// chunk reads a Chunk. The pieces must be inside it, in ascending order.
func (m *message) chunk(c *replicav1.Chunk) error {
	m.Body = core.Chunk{Cursor: c.GetCursor(), Next: c.GetNext(), Applied: c.GetApplied()}
	at := c.GetCursor()
	for _, p := range c.GetPieces() {
		off := uint64(p.GetOffset()) //nolint:gosec // a negative one is too large
		if off < at || off > math.MaxInt64 || off+uint64(len(p.GetData())) > c.GetNext() {
			return fmt.Errorf("%d bytes at %d in a piece of the store from %d to %d", len(p.GetData()), p.GetOffset(), c.GetCursor(), c.GetNext())
		}
		at = off + uint64(len(p.GetData()))
		m.pieces = append(m.pieces, piece{p.GetOffset(), p.GetData()})
	}
	return nil
}

// release releases the content.
func (m *message) release() {
	for i := range m.entries {
		m.entries[i].buf.Release()
	}
	m.entries = nil
}
