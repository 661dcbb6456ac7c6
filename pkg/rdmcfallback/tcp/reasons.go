package tcp

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A memberError is an error caused or met by one member.
type memberError struct {
	id   int
	addr string
	err  error
}

func (e *memberError) Error() string {
	return fmt.Sprintf("member %d (%s): %v", e.id, e.addr, e.err)
}

func (e *memberError) Unwrap() error { return e.err }

// A failedError is the reason why the bootstrap failed at this member.
type failedError struct{ error }

func (e *failedError) Unwrap() error { return e.error }

// causes are the errors whose kind is sent in an abort or a rejection.
var causes = []error{ErrMissing, ErrMismatch, ErrVersion, ErrDuplicate, ErrStale, ErrProtocol, ErrClosed, errNotYet}

// codeOf returns the code of the cause that err wraps, or 0. causeOf returns the cause of a code,
// or nil.
func codeOf(err error) int {
	return 1 + slices.IndexFunc(causes, func(c error) bool { return errors.Is(err, c) })
}

func causeOf(code int) error {
	if code > 0 && code <= len(causes) {
		return causes[code-1]
	}
	return nil
}

// An abortError is the reason why another member gave up.
type abortError struct {
	cause  error // one of causes, or nil
	reason string
}

func (e *abortError) Error() string { return fmt.Sprintf("%v: %s", ErrFailed, e.reason) }

func (e *abortError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrFailed}
	}
	return []error{ErrFailed, e.cause}
}

// abortMessage encodes why this member gives up. A reason received from another member is passed on
// unchanged.
func abortMessage(err error) []byte {
	reason := err.Error()
	if other, ok := errors.AsType[*abortError](err); ok {
		reason = other.reason
	}
	return append([]byte{byte(codeOf(err))}, cutReason(reason)...)
}

func cutReason(s string) string { return s[:min(len(s), maxReason)] }

// parseAbort parses an abortMessage; the text is made safe to print.
func parseAbort(b []byte) error {
	return &abortError{causeOf(int(b[0])), printable(string(b[abortMinimum:]))}
}

// printable replaces characters that do not belong in a line of text.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r > 0x7e && r < 0xa0 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
