package replica

import (
	"cmp"
	"context"
	"errors"
	"hash/crc32"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/store"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Describe implements the protocol.
func (h *Host) Describe(ctx context.Context, q *replicav1.DescribeRequest) (*replicav1.DescribeResponse, error) {
	v, err := h.volumeOf(ctx, q.GetVolume())
	if err != nil {
		return nil, err
	}
	s := v.Status()
	a := &replicav1.DescribeResponse{Self: memberTo(s.Self), Epoch: s.Map.Epoch, Acting: s.Map.Acts(s.Self), Active: s.State == core.Active && s.Leased,
		Born: s.Disk.Born, LastEpochStarted: s.Disk.LastEpochStarted, Backfilling: s.Disk.Backfilling || s.Backfilling, Head: versionTo(s.Synced)}
	if s.Failure != nil {
		a.Failure = s.Failure.Error()
	}
	return a, nil
}

// volumeOf returns the volume of another host's command.
func (h *Host) volumeOf(ctx context.Context, id uint64) (*Volume, error) {
	if _, err := h.caller(ctx); err != nil {
		return nil, err
	}
	v := h.volume(id)
	if v != nil {
		return v, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return nil, status.Errorf(codes.FailedPrecondition, "host %s: volume %016x: %v", h.cfg.Self.Name, id, cmp.Or(h.broken[id], ErrNotFound))
}

// Checksum implements the protocol.
func (h *Host) Checksum(ctx context.Context, q *replicav1.ChecksumRequest) (*replicav1.ChecksumResponse, error) {
	v, err := h.volumeOf(ctx, q.GetVolume())
	if err != nil {
		return nil, err
	}
	if err := v.check(q.GetOffset(), q.GetLength()); err != nil || q.GetLength() > store.Piece {
		return nil, status.Errorf(codes.InvalidArgument, "a checksum of %d bytes at %d, and at most %d are read at once: %v", q.GetLength(), q.GetOffset(), store.Piece, err)
	}
	select {
	case h.checks <- struct{}{}:
		defer func() { <-h.checks }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return v.checksum(ctx, q)
}

// checksum reads the volume as of an index of the log: the store, and over it the entries up to
// that index. Later entries that the store may have already must not be in the range.
func (v *Volume) checksum(ctx context.Context, q *replicav1.ChecksumRequest) (*replicav1.ChecksumResponse, error) {
	l, p := v.loop, make([]byte, q.GetLength())
	at, shown, said := versionFrom(q.GetAt()), uint64(0), replicav1.Checked_CHECKED_DONE
	answer := func(c replicav1.Checked, err error) (*replicav1.ChecksumResponse, error) {
		a := &replicav1.ChecksumResponse{Checked: c, At: versionTo(at)}
		if err != nil {
			a.Error = err.Error()
		}
		return a, nil
	}
	var failure error
	err := l.ask(ctx, func() { at, shown, said, failure = l.checkable(at, q.GetAt() == nil) })
	if err != nil {
		return nil, err
	}
	if said != replicav1.Checked_CHECKED_DONE || len(p) == 0 {
		return answer(said, failure)
	}
	if err := l.disk.readStore(p, q.GetOffset()); err != nil {
		return answer(replicav1.Checked_CHECKED_UNREADABLE, err)
	}
	var rest []part
	if err := l.ask(ctx, func() { rest, said = l.overlay(p, q.GetOffset(), at, shown) }); err != nil {
		return nil, err
	}
	if said != replicav1.Checked_CHECKED_DONE {
		return answer(said, nil)
	}
	for _, r := range rest {
		e, err := l.disk.log.Read(r.index)
		switch {
		case errors.Is(err, wal.ErrNotFound):
			return answer(replicav1.Checked_CHECKED_PAST, nil)
		case err != nil:
			return answer(replicav1.Checked_CHECKED_UNREADABLE, err)
		}
		copy(p[r.off-q.GetOffset():r.end-q.GetOffset()], e.Data[r.off-e.Offset:])
	}
	return &replicav1.ChecksumResponse{Checked: said, At: versionTo(at), Crc: crc32.Checksum(p, castagnoli)}, nil
}

// ask runs f in the loop, to read its state. If ask fails, f may still run.
func (l *loop) ask(ctx context.Context, f func()) error {
	select {
	case <-l.await(f):
		return nil
	case <-l.stopped:
		return status.Error(codes.Unavailable, ErrClosed.Error())
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// checkable says whether this copy can be read as of an entry, which the primary chooses, and which entries the store has.
func (l *loop) checkable(at core.Version, choose bool) (_ core.Version, shown uint64, said replicav1.Checked, err error) {
	if l.failure != nil {
		return at, 0, replicav1.Checked_CHECKED_UNREADABLE, l.failure
	}
	if choose {
		_, index, ok := l.node.Read(now())
		if !ok {
			return at, 0, replicav1.Checked_CHECKED_NOT_PRIMARY, nil
		}
		at, _ = l.node.At(index)
	}
	here, ok := l.node.At(at.Index)
	switch {
	case !l.complete():
		said = replicav1.Checked_CHECKED_NOT_ACTING
	case at.Index < l.content.tail:
		said = replicav1.Checked_CHECKED_PAST
	case !ok || here != at:
		said = replicav1.Checked_CHECKED_BEHIND
	default:
		said = replicav1.Checked_CHECKED_DONE
	}
	return at, l.shown, said, nil
}

// complete reports whether this copy is complete, and has all committed entries.
func (l *loop) complete() bool {
	s := l.node.Status(now())
	return s.Map.Acts(s.Self) && !s.Backfilling
}

// overlay copies the entries up to an index over the data read from the store, which had those up to
// shown at least. The rest must be read from the log on disk.
func (l *loop) overlay(p []byte, off int64, at core.Version, shown uint64) (rest []part, said replicav1.Checked) {
	all := span{off, off + int64(len(p))}
	for i := at.Index + 1; i <= l.disk.applied; i++ {
		if x := l.content.at(i); x == nil || !x.span().cut(all).empty() {
			return nil, replicav1.Checked_CHECKED_PAST
		}
	}
	rest, ok := l.content.read(p, off, shown, at.Index)
	switch {
	case !l.complete():
		return nil, replicav1.Checked_CHECKED_NOT_ACTING
	case !ok:
		return nil, replicav1.Checked_CHECKED_PAST
	}
	return rest, replicav1.Checked_CHECKED_DONE
}

// readStore reads a range, but not if all of it is a hole.
func (d *disk) readStore(p []byte, off int64) error {
	for e, err := range d.store.Extents(off, int64(len(p))) {
		if err == nil && e.Hole && e.Length == int64(len(p)) {
			return nil
		}
		break
	}
	return d.store.ReadAt(p, off)
}
