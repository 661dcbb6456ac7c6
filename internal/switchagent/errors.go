package switchagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// Errors that those of this package wrap, besides those of package bifurcation.
var (
	ErrConfig   = errors.New("bad configuration")
	ErrNotReady = groups.ErrNotReady
	ErrSwitch   = errors.New("the switch refused")
	ErrLimit    = groups.ErrLimit
	ErrPeer     = errors.New("another agent failed")
	ErrExists   = groups.ErrExists
	ErrNotFound = groups.ErrNotFound
	ErrDenied   = errors.New("not allowed")
	ErrStale    = groups.ErrStale
)

// reasons maps errors to the contract's reasons. The first match counts.
var reasons = []struct {
	err    error
	reason mcrdmav1.Reason
}{
	{bifurcation.ErrAmbiguous, mcrdmav1.Reason_AMBIGUOUS},
	{bifurcation.ErrLoop, mcrdmav1.Reason_LOOP},
	{bifurcation.ErrNoRoute, mcrdmav1.Reason_NO_ROUTE},
	{bifurcation.ErrNoMergePoint, mcrdmav1.Reason_NO_MERGE_POINT},
	{bifurcation.ErrNoReceivers, mcrdmav1.Reason_NO_RECEIVERS},
	{bifurcation.ErrTooManyReceivers, mcrdmav1.Reason_TOO_MANY_RECEIVERS},
	{bifurcation.ErrDuplicateAddress, mcrdmav1.Reason_DUPLICATE_ADDRESS},
	{bifurcation.ErrSenderReceives, mcrdmav1.Reason_SENDER_RECEIVES},
	{bifurcation.ErrInvalid, mcrdmav1.Reason_INVALID},
	{ErrDenied, mcrdmav1.Reason_DENIED},
	{ErrExists, mcrdmav1.Reason_EXISTS},
	{ErrNotFound, mcrdmav1.Reason_NOT_FOUND},
	{ErrLimit, mcrdmav1.Reason_LIMIT},
	{ErrStale, mcrdmav1.Reason_STALE},
	{ErrSwitch, mcrdmav1.Reason_SWITCH},
	{ErrNotReady, mcrdmav1.Reason_NOT_READY},
	{ErrPeer, mcrdmav1.Reason_PEER},
	{context.DeadlineExceeded, mcrdmav1.Reason_TIMEOUT},
	{context.Canceled, mcrdmav1.Reason_CLOSED},
}

// at adds to an error where it occurred, if it does not say so.
func at(name bifurcation.Switch, err error) error {
	if err == nil || errors.As(err, new(*failure.Error)) {
		return err
	}
	return &failure.Error{Switch: string(name), Text: err.Error(), Cause: err}
}

// explain converts an error to the gRPC status for a client.
func (a *Agent) explain(err error) error {
	out := &failure.Error{}
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			out.Reason = r.reason
			break
		}
	}
	if _, ok := status.FromError(err); ok && out.Reason == mcrdmav1.Reason_REASON_UNSPECIFIED {
		return err
	}
	if e, ok := errors.AsType[*failure.Error](err); ok {
		out.Switch, out.Sequence = e.Switch, e.Sequence
	}
	out.Switch = cmp.Or(out.Switch, string(a.name))
	out.Text = strings.TrimPrefix(err.Error(), "switch "+out.Switch+": ")
	return out
}

// heard converts the error of a call to another agent: the agent's own error, or the failure of the
// call.
func heard(peer bifurcation.Switch, err error) error {
	if err == nil {
		return nil
	}
	if e := failure.Read(err); e != nil {
		for _, r := range reasons {
			if r.reason == e.Reason {
				e.Cause = r.err
				return e
			}
		}
	}
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return fmt.Errorf("%w: switch %s did not answer in time", ErrPeer, peer)
	case codes.Unavailable:
		return fmt.Errorf("%w: switch %s cannot be reached: %s", ErrPeer, peer, failure.Said(err))
	}
	return fmt.Errorf("%w: switch %s: %v: %s", ErrPeer, peer, status.Code(err), failure.Said(err))
}
