package mcrdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	errinfo "github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// Kinds of errors; test with errors.Is. All are *Error. errors.As finds an *Error in each error of
// this package that is not a context's or a device's.
var (
	// ErrClosed: the Client, Group, Listener or Member is closed. A Member may also have been
	// closed by its sender, after Recv has returned everything.
	ErrClosed = kind(mcrdmav1.Reason_CLOSED, "closed")
	// ErrDaemon: the host's daemon cannot be reached, or could not be for so long that the object
	// of the call has ended.
	ErrDaemon = kind(mcrdmav1.Reason_REASON_UNSPECIFIED, "daemon")
	// ErrInvalid: an argument is invalid: bytes outside of a region, too many pieces, or receivers
	// that are named twice, unknown, too many, or have a smaller MTU than the sender. For a Member:
	// a message was longer than the posted receive, and the member has left.
	ErrInvalid = kind(mcrdmav1.Reason_INVALID, "invalid")
	// ErrDenied: a policy of a daemon or of a receiving application forbids it, or daemons don't
	// accept each other's certificates.
	ErrDenied = kind(mcrdmav1.Reason_DENIED, "denied")
	// ErrUnreachable: a host's daemon doesn't answer, no application listens there for the service, or
	// the unicast connection with a member was lost.
	ErrUnreachable = kind(mcrdmav1.Reason_UNREACHABLE, "unreachable")
	// ErrVersion: a daemon speaks another version of the protocol.
	ErrVersion = kind(mcrdmav1.Reason_VERSION, "version")
	// ErrLimit: a quota is used up, or MaxReceives receives are posted.
	ErrLimit = kind(mcrdmav1.Reason_LIMIT, "limit")
	// ErrNoSwitch: the mode is ModeRequire, and the switches can't.
	ErrNoSwitch = kind(mcrdmav1.Reason_NO_SWITCH, "switches can't")
	// ErrMinSize: too few copies are left.
	ErrMinSize = kind(mcrdmav1.Reason_MIN_SIZE, "too few members")
	// ErrTimeout: it took too long.
	ErrTimeout = kind(mcrdmav1.Reason_TIMEOUT, "timeout")
	// ErrBusy: the memory is in use by operations in flight, receives or regions.
	ErrBusy = kind(mcrdmav1.Reason_REASON_UNSPECIFIED, "in use")
	// ErrRemoved: this member, or the Unicast's, was removed from its group.
	ErrRemoved = kind(mcrdmav1.Reason_REMOVED, "removed from the group")
	// ErrSenderLost: the sender's application or host has ended, or cannot be reached, or the group has failed there.
	ErrSenderLost = kind(mcrdmav1.Reason_SENDER_LOST, "sender lost")
	// ErrFailed: the group cannot be re-formed, or the device failed.
	ErrFailed = kind(mcrdmav1.Reason_REASON_UNSPECIFIED, "failed")
)

// kinds maps the contract's reasons to kinds; other reasons are ErrFailed.
var kinds = map[mcrdmav1.Reason]error{
	mcrdmav1.Reason_INVALID: ErrInvalid, mcrdmav1.Reason_NO_SUCH_HOST: ErrInvalid, mcrdmav1.Reason_DUPLICATE_ADDRESS: ErrInvalid,
	mcrdmav1.Reason_TOO_MANY_RECEIVERS: ErrInvalid, mcrdmav1.Reason_MTU: ErrInvalid, mcrdmav1.Reason_DENIED: ErrDenied,
	mcrdmav1.Reason_UNTRUSTED: ErrDenied, mcrdmav1.Reason_UNREACHABLE: ErrUnreachable, mcrdmav1.Reason_NO_SERVICE: ErrUnreachable,
	mcrdmav1.Reason_VERSION: ErrVersion, mcrdmav1.Reason_LIMIT: ErrLimit, mcrdmav1.Reason_NOT_FOUND: ErrDaemon,
	mcrdmav1.Reason_MIN_SIZE: ErrMinSize, mcrdmav1.Reason_NO_SWITCH: ErrNoSwitch, mcrdmav1.Reason_TIMEOUT: ErrTimeout,
	mcrdmav1.Reason_STALE: errStale, mcrdmav1.Reason_CLOSED: ErrClosed, mcrdmav1.Reason_REMOVED: ErrRemoved,
	mcrdmav1.Reason_SENDER_LOST: ErrSenderLost,
}

// errStale: the daemon is at a later formation than the caller.
var errStale = kind(mcrdmav1.Reason_STALE, "stale")

// An Error says why something failed, and where. Its Reason determines its kind, one of the Err
// variables. errors.Is(err, &Error{Reason: r}) reports whether err has exactly that reason.
type Error struct {
	Reason mcrdmav1.Reason // unspecified: api/mcrdma/v1 has none for it
	Host   string          // that it is about; may be empty
	Switch string          // that it is about; may be empty
	Group  GroupID         // zero: it is about none
	Text   string          // what happened, for people; may be empty
	// Pending, if not nil, is the operation, which goes on and still uses its memory: only the
	// caller's context has ended.
	Pending *Pending
	kind    error // nil: the kind of the wrapped error, or this is a kind
	under   error // what it wraps
}

func kind(reason mcrdmav1.Reason, text string) error {
	return &Error{Reason: reason, Text: "mcrdma: " + text}
}

// newError returns an error of a kind.
func newError(reason mcrdmav1.Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, Text: fmt.Sprintf(format, args...), kind: cmp.Or(kinds[reason], ErrFailed)}
}

// checkUTF8 checks that names are UTF-8, as messages require.
func checkUTF8(what string, names ...string) error {
	for _, n := range names {
		if !utf8.ValidString(n) {
			return newError(mcrdmav1.Reason_INVALID, "the %s %q is not UTF-8", what, n)
		}
	}
	return nil
}

// clipText makes a text valid for sending.
func clipText(s string) string { return errinfo.Clip(s, errinfo.MaxText) }

// about adds the group to an error.
func (id GroupID) about(err error) error {
	e, ok := errors.AsType[*Error](err)
	switch {
	case err == nil || ok && e.Group == id:
		return err
	case !ok:
		e = &Error{}
	}
	return &Error{Reason: e.Reason, Host: e.Host, Switch: e.Switch, Group: id, Text: err.Error(), Pending: e.Pending, under: err}
}

// Error returns a text with everything that is known.
func (e *Error) Error() string {
	if e.kind != nil {
		return e.kind.Error() + ": " + e.Text
	}
	return e.Text
}

// Unwrap returns the cause, if there is one.
func (e *Error) Unwrap() error { return e.under }

// Is reports whether target is the error's kind, or an Error that has only the same Reason.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && (target == e.kind || t.Text == "" && t.Reason == e.Reason && e.Reason != mcrdmav1.Reason_REASON_UNSPECIFIED)
}

// Advice says what to do about errors of this reason. It is empty if Text says so already.
func (e *Error) Advice() string { return advice[e.Reason] }

var advice = map[mcrdmav1.Reason]string{
	mcrdmav1.Reason_INVALID:            "Correct the argument.",
	mcrdmav1.Reason_DENIED:             "Change the policy, or use another certificate.",
	mcrdmav1.Reason_NO_SERVICE:         "Start the receiver's application, or correct the service's name; GroupConfig.Wait waits for it.",
	mcrdmav1.Reason_NO_SUCH_HOST:       "Add the host to the daemon's configuration, or correct its name.",
	mcrdmav1.Reason_UNREACHABLE:        "See whether the host's daemon runs, and the way to it: cmd-daemon doctor.",
	mcrdmav1.Reason_DUPLICATE_ADDRESS:  "Leave the receiver out that is named twice.",
	mcrdmav1.Reason_TOO_MANY_RECEIVERS: "Make several groups.",
	mcrdmav1.Reason_MTU:                "Give the group a smaller MTU, or all devices the same.",
	mcrdmav1.Reason_VERSION:            "Update the older side.",
	mcrdmav1.Reason_UNTRUSTED:          "Renew the certificate, or have it issued by the same CA.",
	mcrdmav1.Reason_LIMIT:              "Close something, raise the limit, or repair the disk, as the text says.",
	mcrdmav1.Reason_NOT_FOUND:          "Create the group or listen again: the daemon does not have it any more.",
	mcrdmav1.Reason_MIN_SIZE:           "Start receivers that are missing, or ask for a smaller MinSize.",
	mcrdmav1.Reason_NO_SWITCH:          "Use ModeAuto, or do for the switch what the text says.",
	mcrdmav1.Reason_TIMEOUT:            "Try again.",
	mcrdmav1.Reason_REMOVED:            "Listen again: the sender can add this host.",
	mcrdmav1.Reason_SENDER_LOST:        "Listen again for the sender's next group.",
}

// fromStatus turns the error of a call into an error of this package.
func fromStatus(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	if info := errinfo.Info(err); info != nil {
		e := newError(mcrdmav1.Reason(mcrdmav1.Reason_value[info.GetReason()]), "%s", s.Message())
		e.Host, e.Switch = info.GetMetadata()["host"], info.GetMetadata()["switch"]
		return e
	}
	switch s.Code() {
	case codes.Canceled:
		return context.Canceled
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	}
	return fmt.Errorf("%w: %s", ErrDaemon, errinfo.Said(err))
}

// ignoreClosed ignores qp.ErrClosed: the application may have closed an object before, with
// its device.
func ignoreClosed(err error) error {
	if errors.Is(err, qp.ErrClosed) {
		return nil
	}
	return err
}

// closedOr turns a device's ErrClosed into this package's.
func closedOr(err error) error {
	if errors.Is(err, qp.ErrClosed) {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}
