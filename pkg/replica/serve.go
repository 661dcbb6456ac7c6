package replica

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// serve makes a request that another host has forwarded, if this one is the primary.
func (v *Volume) serve(ctx context.Context, q *replicav1.ForwardRequest) (*replicav1.ForwardResponse, error) {
	r, err := v.parse(ctx, q)
	if err != nil {
		return nil, err
	}
	defer r.buf.Release()
	a := &replicav1.ForwardResponse{Outcome: replicav1.Outcome_OUTCOME_DONE}
	switch err := v.here(ctx, r); {
	case errors.Is(err, errAgain):
		a.Outcome = replicav1.Outcome_OUTCOME_NOT_PRIMARY
	case errors.Is(err, errPast):
		a.Outcome = replicav1.Outcome_OUTCOME_PAST
	case err != nil:
		return nil, err
	}
	a.Commit, a.Data = v.floor.Load(), r.read
	for _, e := range r.extents {
		a.Extents = append(a.Extents, &replicav1.Extent{Length: e.Length, Hole: e.Hole, Zero: e.Zero})
	}
	return a, nil
}

// parse reads a request. Its data is copied into a buffer.
func (v *Volume) parse(ctx context.Context, q *replicav1.ForwardRequest) (*request, error) {
	r := &request{op: q.GetOperation(), off: q.GetOffset(), n: q.GetLength(), durable: q.GetDurable(), floor: q.GetFloor(), limit: int(min(q.GetLimit(), 1<<16))}
	if err := v.check(r.off, r.n); err != nil || q.GetVersion() != forwardVersion {
		return nil, status.Errorf(codes.InvalidArgument, "a request of version %d, and this host has %d: %v", q.GetVersion(), forwardVersion, err)
	}
	kind, change := kinds[r.op]
	switch {
	case change && (r.n == 0 || q.GetSession() == 0 || kind == wal.Data && (r.n > MaxEntry || int64(len(q.GetData())) != r.n)):
		return nil, status.Errorf(codes.InvalidArgument, "%v of %d bytes with %d", r.op, r.n, len(q.GetData()))
	case change:
		buf, err := v.Buffer(ctx, len(q.GetData()))
		if err != nil {
			return nil, err
		}
		copy(buf.data, q.GetData())
		r.change(q.GetSession(), q.GetSeq(), buf)
	case r.op == opRead && r.n <= maxRead:
		r.read = make([]byte, r.n)
	case r.op == opFlush:
	case r.op == opExtents:
		r.limit = max(r.limit, 1)
	default:
		return nil, status.Errorf(codes.InvalidArgument, "%v of %d bytes: a newer program, or a mistake", r.op, r.n)
	}
	return r, nil
}
