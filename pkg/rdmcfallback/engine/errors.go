package engine

import (
	"errors"
	"fmt"
	"slices"
)

// Why a group fails. A FailedError's Reason wraps one of these, the same one at every member.
var (
	// ErrMismatch: the members differ in the group's parameters.
	ErrMismatch = errors.New("members differ in their configuration")
	// ErrLost: the connection to a member ended.
	ErrLost = errors.New("connection lost")
	// ErrProtocol: a member violated the protocol.
	ErrProtocol = errors.New("protocol violated")
	// ErrRefused: a member's application gave no buffer for a message.
	ErrRefused = errors.New("message refused")
	// ErrLeft: a member left before the group had ended.
	ErrLeft = errors.New("left before the end")
)

// Errors of calls. The call has changed nothing.
var (
	// ErrConfig: the configuration is invalid.
	ErrConfig = errors.New("rdmcfallback: impossible configuration")
	// ErrNotRoot: only the root sends.
	ErrNotRoot = errors.New("rdmcfallback: only member 0, the root, sends messages")
	// ErrSize: a message has too many blocks, or fewer than 0 bytes.
	ErrSize = errors.New("rdmcfallback: impossible size of a message")
	// ErrClosed: the group is closed, or about to be.
	ErrClosed = errors.New("rdmcfallback: group is closed")
)

// codes are the reasons as encoded in messages, from 1; nil: unused number.
var codes = [256]error{1: ErrMismatch, 2: ErrLost, 3: ErrProtocol, 4: ErrRefused, 5: ErrLeft}

// A FailedError says that a group has failed, why, and what is complete.
type FailedError struct {
	// Suspect is the member that is thought to be the cause. Members may
	// suspect different ones: of two whose connection broke, each suspects the
	// other.
	Suspect int
	// Reporter is the member that has found it.
	Reporter int
	// Name is the suspect's name.
	Name string
	// Reason wraps ErrMismatch, ErrLost, ErrProtocol, ErrRefused or ErrLeft.
	Reason error
	// Complete is how many messages are complete at this member: it has
	// messages 0 to Complete-1 and lacks the others. At the root it says only
	// that these were sent.
	Complete int64
}

func (f *FailedError) Error() string {
	return fmt.Sprintf("rdmcfallback: group failed, member %d (%s) is suspected: %v; the first %d messages are complete here",
		f.Suspect, f.Name, f.Reason, f.Complete)
}

// Unwrap returns the reason.
func (f *FailedError) Unwrap() error { return f.Reason }

// A relayed reason is one that another member found.
type relayed struct {
	text   string
	reason error
}

func (r *relayed) Error() string { return r.text }
func (r *relayed) Unwrap() error { return r.reason }

// codeOf returns the number that encodes a reason, which wraps one of the errors above.
func codeOf(reason error) byte {
	return byte(slices.IndexFunc(codes[:], func(e error) bool { return e != nil && errors.Is(reason, e) }))
}
