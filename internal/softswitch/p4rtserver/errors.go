package p4rtserver

import (
	"errors"
	"fmt"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
)

// A failure is an error with a canonical code and a text in terms of the P4Info.
type failure struct {
	code codes.Code
	text string
}

func (f *failure) Error() string { return f.text }

// GRPCStatus lets gRPC convert the failure.
func (f *failure) GRPCStatus() *status.Status { return status.New(f.code, f.text) }

func fail(code codes.Code, format string, args ...any) error {
	return &failure{code, fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) error {
	return fail(codes.InvalidArgument, format, args...)
}

// in prefixes an error with its subject.
func in(what string, err error) error {
	if err == nil {
		return nil
	}
	return &failure{codeOf(err), what + ": " + err.Error()}
}

// sentinels maps the errors of the switch's state to canonical codes.
var sentinels = []struct {
	err  error
	code codes.Code
}{
	{pipeline.ErrExists, codes.AlreadyExists},
	{pipeline.ErrNotFound, codes.NotFound},
	{pipeline.ErrFull, codes.ResourceExhausted},
	{pipeline.ErrInvalid, codes.InvalidArgument},
	{pipeline.ErrConst, codes.PermissionDenied},
	{pipeline.ErrInUse, codes.FailedPrecondition},
	{pre.ErrExists, codes.AlreadyExists},
	{pre.ErrNotFound, codes.NotFound},
	{pre.ErrFull, codes.ResourceExhausted},
	{pre.ErrInvalid, codes.InvalidArgument},
}

func codeOf(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f.code
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.code
		}
	}
	return codes.Internal
}

// errorSpace identifies the source of the errors, as P4Runtime suggests.
const errorSpace = "softswitch-v1model-mcrdma"

// maxText limits the total length of the error texts of one batch, in bytes; further errors have a
// code only. gRPC carries them in a trailer, for which C++ and Python clients by default accept 8
// KiB, including base64; a client that gets a larger one sees no errors at all (guidelines for
// implementations, "gRPC Metadata Maximum Size"). Each error takes about 37 more bytes, so this is
// enough for batches of 100.
const maxText = 1200

// batchStatus returns the status of a Write or Read with one error or nil for each element of its
// batch: nil if all are nil, else UNKNOWN with one p4.v1.Error detail per element ("Error
// Reporting").
func batchStatus(what string, errs []error) error {
	// Report the first update with a fault of its own, not one that was rolled back or skipped
	// because another failed.
	failed, first := 0, -1
	for i, err := range errs {
		if err == nil {
			continue
		}
		failed++
		if first < 0 || codeOf(errs[first]) == codes.Aborted && codeOf(err) != codes.Aborted {
			first = i
		}
	}
	if failed == 0 {
		return nil
	}
	st := &spb.Status{
		Code:    int32(codes.Unknown),
		Message: fmt.Sprintf("%d of %d %s failed; number %d: %s", failed, len(errs), what, first, errs[first].Error()),
		Details: make([]*anypb.Any, 0, len(errs)),
	}
	room := maxText
	for i, err := range errs {
		e := &p4.Error{CanonicalCode: int32(codeOf(err))}
		if err != nil {
			text := err.Error()
			if room -= len(text) + len(errorSpace); i == first || room >= 0 {
				e.Message, e.Space = text, errorSpace
			}
		}
		detail, err := anypb.New(e)
		if err != nil {
			return fail(codes.Internal, "cannot encode an error: %v", err)
		}
		st.Details = append(st.Details, detail)
	}
	return status.ErrorProto(st)
}

func noExterns() error {
	return fail(codes.Unimplemented, "v1model has no externs that extern entries could be about")
}
