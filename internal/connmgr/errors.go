package connmgr

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrConfig is wrapped by errors of configurations that cannot be used.
var ErrConfig = errors.New("bad configuration")

// A Reason is the kind of an error: the reason of an ErrorInfo, and an error that the
// errors of this package wrap.
type Reason string

// Reasons, as api/mcrdma/v1 has them.
const (
	Invalid          Reason = "INVALID"
	Denied           Reason = "DENIED"
	NoService        Reason = "NO_SERVICE"
	NoSuchHost       Reason = "NO_SUCH_HOST"
	Unreachable      Reason = "UNREACHABLE"
	DuplicateAddress Reason = "DUPLICATE_ADDRESS"
	TooManyReceivers Reason = "TOO_MANY_RECEIVERS"
	MTU              Reason = "MTU"
	Version          Reason = "VERSION"
	Untrusted        Reason = "UNTRUSTED"
	Limit            Reason = "LIMIT"
	NotFound         Reason = "NOT_FOUND"
	MinSize          Reason = "MIN_SIZE"
	NoSwitch         Reason = "NO_SWITCH"
	Timeout          Reason = "TIMEOUT"
	Stale            Reason = "STALE"
	Closed           Reason = "CLOSED"
	Removed          Reason = "REMOVED"
	SenderLost       Reason = "SENDER_LOST"
)

var reasonCodes = map[Reason]codes.Code{
	Invalid: codes.InvalidArgument, Denied: codes.PermissionDenied, NoService: codes.NotFound, NoSuchHost: codes.NotFound,
	Unreachable: codes.Unavailable, DuplicateAddress: codes.InvalidArgument, TooManyReceivers: codes.InvalidArgument,
	MTU: codes.FailedPrecondition, Version: codes.FailedPrecondition, Untrusted: codes.Unauthenticated,
	Limit: codes.ResourceExhausted, NotFound: codes.NotFound, MinSize: codes.FailedPrecondition,
	NoSwitch: codes.FailedPrecondition, Timeout: codes.DeadlineExceeded, Stale: codes.Aborted, Closed: codes.Canceled,
	Removed: codes.NotFound, SenderLost: codes.NotFound,
}

func (r Reason) Error() string { return string(r) }

// A fault is an error with its reason, and where it happened.
type fault struct {
	reason Reason
	host   string // "": not at a host, or at this one
	sw     string // switch
	text   string
	unsent bool // the request cannot have arrived
	// formation is the latest that a receiver knows, if it refuses for that reason; 0:
	// another reason.
	formation uint32
	cause     error
}

func (f *fault) Error() string {
	switch {
	case f.host != "":
		return "host " + f.host + ": " + f.text
	case f.sw != "":
		return "switch " + f.sw + ": " + f.text
	}
	return f.text
}

func (f *fault) Unwrap() []error {
	if f.cause == nil {
		return []error{f.reason}
	}
	return []error{f.reason, f.cause}
}

// refuse makes a fault. The text says what is wrong and what to do.
func refuse(r Reason, format string, args ...any) *fault {
	return &fault{reason: r, text: fmt.Sprintf(format, args...)}
}

// at says at which host a fault happened.
func (f *fault) at(host string) *fault {
	f.host = host
	return f
}

// faultOf makes a fault of any error.
func faultOf(err error) *fault {
	var f *fault
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, context.DeadlineExceeded):
		return refuse(Timeout, "there was not enough time: %v", err)
	case errors.Is(err, context.Canceled):
		return refuse(Closed, "the caller has gone: %v", err)
	}
	return nil
}

const errorDomain = "mcrdma"

// toStatus turns an error of this host into the status that a caller sees.
func (m *Manager) toStatus(err error) error {
	if err == nil {
		return nil
	}
	f := faultOf(err)
	if f == nil {
		return status.Errorf(codes.Internal, "host %s: %v", m.name, err)
	}
	host := f.host
	if host == "" && f.sw == "" {
		host = m.name
	}
	s := status.New(reasonCodes[f.reason], f.Error())
	metadata := map[string]string{"text": f.text}
	if host != "" {
		metadata["host"] = host
	}
	if f.sw != "" {
		metadata["switch"] = f.sw
	}
	if f.formation != 0 {
		metadata["formation"] = strconv.FormatUint(uint64(f.formation), 10)
	}
	with, detailErr := s.WithDetails(&errdetails.ErrorInfo{Domain: errorDomain, Reason: string(f.reason), Metadata: metadata})
	if detailErr != nil {
		return s.Err()
	}
	return with.Err()
}

// infoOf is the ErrorInfo of our domain in an error of gRPC; nil: none.
func infoOf(s *status.Status) *errdetails.ErrorInfo {
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info
		}
	}
	return nil
}

// maxName and maxText limit texts from others that are kept, logged and passed on.
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
