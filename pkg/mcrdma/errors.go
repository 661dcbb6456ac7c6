package mcrdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	errinfo "github.com/mcrdma/mcrdma/internal/failure"
)

// Errors that the errors of this package wrap; test with errors.Is. The error's text says
// what happened, at which host or switch, and what to do.
var (
	// ErrClosed: the Client, Group, Listener or Member is closed; for a Member, also
	// by its sender, after everything that was sent.
	ErrClosed = errors.New("mcrdma: closed")
	// ErrDaemon: the host's daemon cannot be reached, or could not be for so long that it has
	// dropped the object of the call.
	ErrDaemon = errors.New("mcrdma: daemon")
	// ErrInvalid: an argument is impossible.
	ErrInvalid = errors.New("mcrdma: invalid")
	// ErrDenied: a policy of a daemon or of a receiving application forbids it.
	ErrDenied = errors.New("mcrdma: denied")
	// ErrNoService: no application listens for the service at a receiver.
	ErrNoService = errors.New("mcrdma: no such service")
	// ErrNoHost: no such host is known.
	ErrNoHost = errors.New("mcrdma: no such host")
	// ErrUnreachable: a host's daemon doesn't answer.
	ErrUnreachable = errors.New("mcrdma: unreachable")
	// ErrDuplicate: a receiver is named twice.
	ErrDuplicate = errors.New("mcrdma: duplicate address")
	// ErrTooMany: more receivers than a group may have.
	ErrTooMany = errors.New("mcrdma: too many receivers")
	// ErrMTU: a receiver's device takes smaller packets than the sender's sends.
	ErrMTU = errors.New("mcrdma: MTU")
	// ErrVersion: a daemon speaks another version of the protocol.
	ErrVersion = errors.New("mcrdma: version")
	// ErrUntrusted: the daemons don't accept each other's certificates.
	ErrUntrusted = errors.New("mcrdma: untrusted")
	// ErrLimit: a quota is used up.
	ErrLimit = errors.New("mcrdma: limit")
	// ErrNoSwitch: Mode is Require, and the switches can't.
	ErrNoSwitch = errors.New("mcrdma: switches can't")
	// ErrMinSize: too few copies are left.
	ErrMinSize = errors.New("mcrdma: too few members")
	// ErrTimeout: it took too long.
	ErrTimeout = errors.New("mcrdma: timeout")
	// ErrRange: bytes outside of a region or of a Memory.
	ErrRange = errors.New("mcrdma: out of range")
	// ErrDepth: more receives than may be posted, or a gather list with more than
	// MaxPieces.
	ErrDepth = errors.New("mcrdma: too many")
	// ErrBusy: the memory is in use by operations under way, receives or regions.
	ErrBusy = errors.New("mcrdma: in use")
	// ErrRemoved: this member was taken out of its group.
	ErrRemoved = errors.New("mcrdma: removed from the group")
	// ErrSenderLost: the sender's application or host has ended, or cannot be reached.
	ErrSenderLost = errors.New("mcrdma: sender lost")
	// ErrTooLong: a message was longer than the receive that was posted for it. The
	// member has left its group.
	ErrTooLong = errors.New("mcrdma: message longer than the receive")
	// ErrFailed: the group can't be formed anew, or the device failed.
	ErrFailed = errors.New("mcrdma: failed")
)

var reasons = map[mcrdmav1.Reason]error{
	mcrdmav1.Reason_INVALID: ErrInvalid, mcrdmav1.Reason_DENIED: ErrDenied, mcrdmav1.Reason_NO_SERVICE: ErrNoService,
	mcrdmav1.Reason_NO_SUCH_HOST: ErrNoHost, mcrdmav1.Reason_UNREACHABLE: ErrUnreachable, mcrdmav1.Reason_DUPLICATE_ADDRESS: ErrDuplicate,
	mcrdmav1.Reason_TOO_MANY_RECEIVERS: ErrTooMany, mcrdmav1.Reason_MTU: ErrMTU, mcrdmav1.Reason_VERSION: ErrVersion,
	mcrdmav1.Reason_UNTRUSTED: ErrUntrusted, mcrdmav1.Reason_LIMIT: ErrLimit, mcrdmav1.Reason_NOT_FOUND: ErrDaemon,
	mcrdmav1.Reason_MIN_SIZE: ErrMinSize, mcrdmav1.Reason_NO_SWITCH: ErrNoSwitch, mcrdmav1.Reason_TIMEOUT: ErrTimeout,
	mcrdmav1.Reason_STALE: errStale, mcrdmav1.Reason_CLOSED: ErrClosed, mcrdmav1.Reason_REMOVED: ErrRemoved,
	mcrdmav1.Reason_SENDER_LOST: ErrSenderLost,
}

// kindOf returns the sentinel for a reason.
func kindOf(reason string) error {
	return cmp.Or(reasons[mcrdmav1.Reason(mcrdmav1.Reason_value[reason])], ErrFailed)
}

// errStale: the daemon is further than the caller.
var errStale = errors.New("mcrdma: stale")

// A RemoteError is an error that a daemon reported. It wraps this package's sentinel for
// its reason.
type RemoteError struct {
	Reason string // the name of a Reason of api/mcrdma/v1, for example "NO_SERVICE"
	Host   string // that it is about; may be empty
	Switch string // that it is about; may be empty
	Text   string
	kind   error
}

// Error returns the daemon's text.
func (e *RemoteError) Error() string { return fmt.Sprintf("%v: %s", e.kind, e.Text) }

// Unwrap returns the sentinel.
func (e *RemoteError) Unwrap() error { return e.kind }

// fromStatus turns the error of a call into an error of this package.
func fromStatus(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	if info := errinfo.Info(err); info != nil {
		return &RemoteError{Reason: info.GetReason(), Host: info.GetMetadata()["host"], Switch: info.GetMetadata()["switch"],
			Text: s.Message(), kind: kindOf(info.GetReason())}
	}
	switch s.Code() {
	case codes.Canceled:
		return context.Canceled
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	}
	return fmt.Errorf("%w: %s (%v)", ErrDaemon, s.Message(), s.Code())
}
