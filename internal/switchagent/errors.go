package switchagent

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// Errors that those of this package wrap, besides those of package bifurcation.
var (
	ErrConfig   = errors.New("bad configuration")
	ErrNotReady = errors.New("not ready")
	ErrSwitch   = errors.New("the switch refused")
	ErrLimit    = errors.New("limit reached")
	ErrPeer     = errors.New("another agent failed")
	ErrExists   = errors.New("another group has these numbers")
	ErrNotFound = errors.New("there is no such group")
	ErrDenied   = errors.New("not allowed")
	ErrStale    = errors.New("overtaken by a later request")
)

// reasons maps errors to what a client gets: a gRPC code and the reason of an
// ErrorInfo. The first match counts.
var reasons = []struct {
	err    error
	code   codes.Code
	reason string
}{
	{bifurcation.ErrAmbiguous, codes.FailedPrecondition, "AMBIGUOUS"},
	{bifurcation.ErrLoop, codes.FailedPrecondition, "LOOP"},
	{bifurcation.ErrNoRoute, codes.FailedPrecondition, "NO_ROUTE"},
	{bifurcation.ErrNoMergePoint, codes.FailedPrecondition, "NO_MERGE_POINT"},
	{bifurcation.ErrNoReceivers, codes.InvalidArgument, "NO_RECEIVERS"},
	{bifurcation.ErrTooManyReceivers, codes.InvalidArgument, "TOO_MANY_RECEIVERS"},
	{bifurcation.ErrDuplicateAddress, codes.InvalidArgument, "DUPLICATE_ADDRESS"},
	{bifurcation.ErrSenderReceives, codes.InvalidArgument, "SENDER_RECEIVES"},
	{bifurcation.ErrInvalid, codes.InvalidArgument, "INVALID"},
	{ErrDenied, codes.PermissionDenied, "DENIED"},
	{ErrExists, codes.AlreadyExists, "EXISTS"},
	{ErrNotFound, codes.NotFound, "NOT_FOUND"},
	{ErrLimit, codes.ResourceExhausted, "LIMIT"},
	{ErrStale, codes.Aborted, "STALE"},
	{ErrSwitch, codes.Internal, "SWITCH"},
	{ErrNotReady, codes.Unavailable, "NOT_READY"},
	{ErrPeer, codes.Unavailable, "PEER"},
	{context.DeadlineExceeded, codes.DeadlineExceeded, "NOT_READY"},
	{context.Canceled, codes.Canceled, "NOT_READY"},
}

const errorDomain = "mcrdma"

// An atError is an error with the switch it happened at.
type atError struct {
	at  bifurcation.Switch
	err error
}

func (e *atError) Error() string { return fmt.Sprintf("switch %s: %v", e.at, e.err) }
func (e *atError) Unwrap() error { return e.err }

// at says where an error happened, unless it says so itself.
func at(name bifurcation.Switch, err error) error {
	if err == nil || errors.As(err, new(*atError)) {
		return err
	}
	return &atError{name, err}
}

// toStatus is the status that a client gets for an error.
func toStatus(name bifurcation.Switch, err error) error {
	if err == nil {
		return nil
	}
	where := &atError{name, err}
	errors.As(err, &where)
	for _, r := range reasons {
		if !errors.Is(err, r.err) {
			continue
		}
		s := status.New(r.code, at(name, err).Error())
		metadata := map[string]string{"switch": string(where.at), "text": where.err.Error()}
		if stale := (*staleError)(nil); errors.As(err, &stale) {
			metadata["sequence"] = strconv.FormatUint(stale.have, 10)
		}
		with, detailErr := s.WithDetails(&errdetails.ErrorInfo{Domain: errorDomain, Reason: r.reason, Metadata: metadata})
		if detailErr != nil {
			return s.Err()
		}
		return with.Err()
	}
	return status.Error(codes.Internal, at(name, err).Error())
}

// A staleError has the sequence of the later request that overtook this one.
type staleError struct{ asked, have uint64 }

func (e *staleError) Error() string {
	return fmt.Sprintf("%v: number %d, after %d", ErrStale, e.asked, e.have)
}
func (e *staleError) Unwrap() error { return ErrStale }

// A remoteError is an error that another agent returned.
type remoteError struct {
	text     string
	cause    error
	sequence uint64 // of a staleError
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.cause }

// fromStatus is the error that another agent returned, or that the call failed.
func fromStatus(peer bifurcation.Switch, err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	for _, d := range s.Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != errorDomain {
			continue
		}
		for _, r := range reasons {
			if r.reason == info.GetReason() {
				where := bifurcation.Switch(clip(info.GetMetadata()["switch"], maxName))
				sequence, _ := strconv.ParseUint(info.GetMetadata()["sequence"], 10, 64)
				return &atError{where, &remoteError{clip(info.GetMetadata()["text"], maxText), r.err, sequence}}
			}
		}
	}
	if s.Code() == codes.DeadlineExceeded {
		return fmt.Errorf("%w: switch %s did not answer in time", ErrPeer, peer)
	}
	return fmt.Errorf("%w: switch %s: %v: %s", ErrPeer, peer, s.Code(), clip(s.Message(), maxText))
}

// maxName and maxText bound texts from others that are stored, logged and passed on.
const (
	maxName = 253
	maxText = 1000
)

func clip(s string, most int) string {
	cut := ""
	if len(s) > most {
		s, cut = s[:most], "…"
	}
	return strings.ToValidUTF8(s, "\ufffd") + cut
}
