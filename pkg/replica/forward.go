package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
)

const forwardVersion = 1 // of the protocol

// forward sends a request to another host, until that has answered or is no longer the primary.
func (v *Volume) forward(ctx context.Context, to *route, r *request) error {
	x := v.peers.get(to.primary.ID)
	if x == nil {
		return errAgain
	}
	q := &replicav1.ForwardRequest{Version: forwardVersion, Volume: v.info.ID, Operation: r.op, Offset: r.off, Length: r.n,
		Durable: r.durable, Session: r.entry.Session, Seq: r.entry.Seq, Floor: r.floor, Data: r.entry.Data, Limit: uint32(r.limit)} //nolint:gosec // not negative
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(to.ctx, cancel)()
	if r.op == opRead {
		n := r.n
		if n > 32<<10 {
			n = max(n, 1<<20) // gRPC has no size of buffers in between
		}
		if x.reads.Acquire(call, n) != nil {
			return cmp.Or(ctx.Err(), errAgain)
		}
		defer x.reads.Release(n)
	}
	var a *replicav1.ForwardResponse
	unsent, err := x.conn.Call(call, func(ctx context.Context) (err error) {
		a, err = x.rpc.Forward(ctx, q)
		return err
	})
	if !unsent {
		r.tries++
	}
	switch code := status.Code(err); {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && (code == codes.InvalidArgument || code == codes.PermissionDenied || code == codes.Unauthenticated || code == codes.ResourceExhausted):
		return fmt.Errorf("host %s, the primary of volume %s: %w", x.host.Name, v.info.Name, err)
	case err != nil:
		return errAgain
	}
	v.seen(a.GetCommit())
	switch a.GetOutcome() {
	case replicav1.Outcome_OUTCOME_DONE:
		return r.take(a)
	case replicav1.Outcome_OUTCOME_PAST:
		return errPast
	}
	return errAgain
}

// seen records a committed index.
func (v *Volume) seen(commit uint64) {
	for was := v.floor.Load(); commit > was && !v.floor.CompareAndSwap(was, commit); was = v.floor.Load() {
	}
}

// take takes what was read.
func (r *request) take(a *replicav1.ForwardResponse) error {
	switch r.op {
	case opRead:
		if len(a.GetData()) != len(r.read) {
			return fmt.Errorf("the primary has answered a read of %d bytes by %d", len(r.read), len(a.GetData()))
		}
		copy(r.read, a.GetData())
	case opExtents:
		left := r.n
		for _, e := range a.GetExtents() {
			left -= e.GetLength()
			r.extents = append(r.extents, Extent{e.GetLength(), e.GetHole(), e.GetZero()})
			if e.GetLength() <= 0 || left < 0 {
				return errors.New("the primary has answered with extents that are not of the range")
			}
		}
	}
	return nil
}
