// Package failure carries errors over gRPC: as a status whose ErrorInfo has a Reason of
// api/mcrdma/v1, and the host or switch where it occurred. Daemons and agents return an [*Error]
// from their handlers, and clients [Read] it from the errors of their calls.
package failure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// Domain is that of the ErrorInfo.
const Domain = "mcrdma"

// codeOf has the gRPC code of each reason. Errors without one are internal.
var codeOf = map[mcrdmav1.Reason]codes.Code{
	mcrdmav1.Reason_REASON_UNSPECIFIED: codes.Internal,
	mcrdmav1.Reason_INVALID:            codes.InvalidArgument,
	mcrdmav1.Reason_DENIED:             codes.PermissionDenied,
	mcrdmav1.Reason_NO_SERVICE:         codes.NotFound,
	mcrdmav1.Reason_NO_SUCH_HOST:       codes.NotFound,
	mcrdmav1.Reason_UNREACHABLE:        codes.Unavailable,
	mcrdmav1.Reason_DUPLICATE_ADDRESS:  codes.InvalidArgument,
	mcrdmav1.Reason_TOO_MANY_RECEIVERS: codes.InvalidArgument,
	mcrdmav1.Reason_MTU:                codes.FailedPrecondition,
	mcrdmav1.Reason_VERSION:            codes.FailedPrecondition,
	mcrdmav1.Reason_UNTRUSTED:          codes.Unauthenticated,
	mcrdmav1.Reason_LIMIT:              codes.ResourceExhausted,
	mcrdmav1.Reason_NOT_FOUND:          codes.NotFound,
	mcrdmav1.Reason_MIN_SIZE:           codes.FailedPrecondition,
	mcrdmav1.Reason_NO_SWITCH:          codes.FailedPrecondition,
	mcrdmav1.Reason_TIMEOUT:            codes.DeadlineExceeded,
	mcrdmav1.Reason_STALE:              codes.Aborted,
	mcrdmav1.Reason_CLOSED:             codes.Canceled,
	mcrdmav1.Reason_REMOVED:            codes.NotFound,
	mcrdmav1.Reason_SENDER_LOST:        codes.NotFound,
	mcrdmav1.Reason_AMBIGUOUS:          codes.FailedPrecondition,
	mcrdmav1.Reason_LOOP:               codes.FailedPrecondition,
	mcrdmav1.Reason_NO_ROUTE:           codes.FailedPrecondition,
	mcrdmav1.Reason_NO_MERGE_POINT:     codes.FailedPrecondition,
	mcrdmav1.Reason_NO_RECEIVERS:       codes.InvalidArgument,
	mcrdmav1.Reason_SENDER_RECEIVES:    codes.InvalidArgument,
	mcrdmav1.Reason_EXISTS:             codes.AlreadyExists,
	mcrdmav1.Reason_SWITCH:             codes.Internal,
	mcrdmav1.Reason_PEER:               codes.Unavailable,
	mcrdmav1.Reason_NOT_READY:          codes.Unavailable,
}

// An Error is an error with its reason, and where it happened.
type Error struct {
	Reason       mcrdmav1.Reason
	Host, Switch string // one of them, or neither: here
	Text         string // what is wrong, and what to do
	Message      string // what Error returns; "": the text, with where it happened
	// Of STALE, the latest number that the other side knows, as one of the two; 0: none.
	Formation uint32
	Sequence  uint64
	Cause     error // nil: none that this process knows of
}

// New makes an error that happened here.
func New(r mcrdmav1.Reason, format string, args ...any) *Error {
	return &Error{Reason: r, Text: fmt.Sprintf(format, args...)}
}

// Of finds the Error in an error, or makes one if a context has ended; nil: it is
// neither.
func Of(err error) *Error {
	e, ok := errors.AsType[*Error](err)
	switch {
	case ok:
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return New(mcrdmav1.Reason_TIMEOUT, "there was not enough time: %v", err)
	case errors.Is(err, context.Canceled):
		return New(mcrdmav1.Reason_CLOSED, "the caller has ended the call: %v", err)
	}
	return nil
}

// Is says whether an error has that reason.
func Is(err error, r mcrdmav1.Reason) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Reason == r
}

func (e *Error) Error() string {
	switch {
	case e.Message != "":
		return e.Message
	case e.Host != "":
		return "host " + e.Host + ": " + e.Text
	case e.Switch != "":
		return "switch " + e.Switch + ": " + e.Text
	}
	return e.Text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// AtHost says at which host it happened.
func (e *Error) AtHost(name string) *Error {
	e.Host = name
	return e
}

// GRPCStatus is the status that a caller sees.
func (e *Error) GRPCStatus() *status.Status {
	s := status.New(codeOf[e.Reason], e.Error())
	if e.Reason == mcrdmav1.Reason_REASON_UNSPECIFIED {
		return s
	}
	metadata := map[string]string{"text": e.Text}
	put := func(key, value string, is bool) {
		if is {
			metadata[key] = value
		}
	}
	put("host", e.Host, e.Host != "")
	put("switch", e.Switch, e.Switch != "")
	put("formation", strconv.FormatUint(uint64(e.Formation), 10), e.Formation != 0)
	put("sequence", strconv.FormatUint(e.Sequence, 10), e.Sequence != 0)
	with, err := s.WithDetails(&errdetails.ErrorInfo{Domain: Domain, Reason: e.Reason.String(), Metadata: metadata})
	if err != nil {
		return s // a text that is not UTF-8
	}
	return with
}

// Info is the ErrorInfo of our domain in the error of a call; nil: none. Its reason may
// be one that this version does not know.
func Info(err error) *errdetails.ErrorInfo {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info
		}
	}
	return nil
}

// Read reads the Error that another process returned from the error of a call, with
// texts of bounded length; nil: it returned none, or one whose reason is not known.
func Read(err error) *Error {
	info := Info(err)
	r := mcrdmav1.Reason(mcrdmav1.Reason_value[info.GetReason()])
	if r == mcrdmav1.Reason_REASON_UNSPECIFIED {
		return nil
	}
	md := info.GetMetadata()
	formation, _ := strconv.ParseUint(md["formation"], 10, 32) // 0: it says none
	sequence, _ := strconv.ParseUint(md["sequence"], 10, 64)
	return &Error{Reason: r, Host: Clip(md["host"], MaxName), Switch: Clip(md["switch"], MaxName), Text: Clip(md["text"], MaxText),
		Formation: uint32(formation), Sequence: sequence} //nolint:gosec // of 32 bits
}

// silence is what a try to connect that took too long has seen.
const silence = "nothing came back in time"

// unwrapped is what grpc-go puts around the reason for which a connection failed.
var unwrapped = regexp.MustCompile(`^(?:.*: )?connection error: desc = "(?:transport: )?(?:Error while dialing: )?(?:dial \S+ \S+: (?:connect: )?)?(.*)"$`)

const preface = "error reading server preface: "

// plain are grpc-go's words for how a connection ended, and what they mean.
var plain = []struct{ said, means string }{
	{"keepalive ping failed to receive ACK within timeout", "it was silent for too long"},
	{preface, "it has closed the connection: "},
	{"error reading from server: ", "the connection was lost: "},
	{"received goaway and there are no active streams", "it has closed the connection"},
	{"no active streams left to process while draining", "it has closed the connection"},
	{"transport is closing", "the connection was closed"},
	{"stream terminated by RST_STREAM with error code: ", "it has ended the call: "},
	{"context deadline exceeded while waiting for connections to become ready", "no connection was made in time"},
	{"context deadline exceeded", "no answer came in time"},
	{"context canceled", "interrupted"},
	{"i/o timeout", silence},
}

// Said is the text of the error of a call, or of a connection, of bounded length and without gRPC's and Go's words around it.
func Said(err error) string {
	text := status.Convert(err).Message()
	op, network := errors.AsType[*net.OpError](err)
	errno, system := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), network && op.Timeout():
		return silence
	case network && system:
		return errno.Error()
	}
	text, _, _ = strings.Cut(text, ", received prior goaway: ")
	if m := unwrapped.FindStringSubmatch(text); m != nil {
		text = strings.ReplaceAll(m[1], `\"`, `"`)
	}
	if strings.HasPrefix(text, preface) && strings.HasSuffix(text, net.ErrClosed.Error()) {
		return silence // grpc-go has closed it when time was up
	}
	for _, p := range plain {
		rest, found := strings.CutPrefix(text, p.said)
		switch {
		case !found:
		case strings.HasPrefix(rest, "identity: "):
			text = rest
		default:
			text = p.means + rest
		}
	}
	return Clip(text, MaxText)
}

// Plain is the error of a call with Said as its text; for errors.Is and errors.As it is what it was.
func Plain(err error) error {
	if err == nil {
		return nil
	}
	return Because(err, err)
}

// Because is an error with Said of its cause as its text; for errors.Is and errors.As it is both.
func Because(err, cause error) error { return &plainError{Said(cause), []error{err, cause}} }

type plainError struct {
	text string
	are  []error
}

func (e *plainError) Error() string   { return e.text }
func (e *plainError) Unwrap() []error { return e.are }

// MaxName and MaxText bound texts from others that are kept, logged and passed on.
const (
	MaxName = 253
	MaxText = 1000
)

// Clip cuts a text to that many bytes.
func Clip(s string, most int) string {
	cut := ""
	if len(s) > most {
		s, cut = s[:most], "…"
	}
	return strings.ToValidUTF8(s, "\ufffd") + cut
}
