package p4rt

import (
	"context"
	"errors"
	"fmt"
	"strings"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// Errors that those of this package wrap.
var (
	// ErrNotPrimary: another agent controls the switch, or none does.
	ErrNotPrimary = errors.New("not the primary controller of the switch")
	// ErrStreamLost: the session has ended; open another one, and read the switch.
	ErrStreamLost = errors.New("the stream to the switch was lost")
	// ErrSilent: the switch hangs.
	ErrSilent = errors.New("the switch does not answer")
	// ErrElection: the switch has had a primary whose election id cannot be exceeded. It
	// forgets that when it restarts.
	ErrElection = errors.New("no higher election id is left")
	// ErrForeign: the switch holds what this client would not have written.
	ErrForeign = errors.New("not written by this agent")
	// ErrConfig: the client's configuration cannot work.
	ErrConfig = errors.New("bad configuration")
)

// An UpdateError is a change that the switch refused.
type UpdateError struct {
	Change switchspec.Change
	Code   codes.Code // canonical
	Object string     // the table's name in the P4Info, or "PRE"
	Text   string     // the switch's message; may be empty
}

func (e *UpdateError) Error() string {
	text := fmt.Sprintf("%s: %v %v: %v", e.Object, e.Change.Op, e.Change.Entity, e.Code)
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// A WriteError says how far Apply came.
type WriteError struct {
	Failed []*UpdateError      // refused
	Done   []switchspec.Change // done, in order
	// Unknown may have been done or not: the answer did not come.
	Unknown []switchspec.Change
	Left    []switchspec.Change // not tried
	Err     error               // why no more was tried, if that is not Failed
}

func (e *WriteError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "p4rt: %d changes done, %d refused, %d unknown, %d left", len(e.Done), len(e.Failed), len(e.Unknown), len(e.Left))
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	for i, f := range e.Failed {
		if i == 3 {
			fmt.Fprintf(&b, "; and %d more", len(e.Failed)-i)
			break
		}
		fmt.Fprintf(&b, "; %v", f)
	}
	return b.String()
}

// Unwrap returns Err and the refused changes' errors.
func (e *WriteError) Unwrap() []error {
	out := make([]error, 0, len(e.Failed)+1)
	if e.Err != nil {
		out = append(out, e.Err)
	}
	for _, f := range e.Failed {
		out = append(out, f)
	}
	return out
}

// perUpdate returns the code and message for each of n updates of a Write that
// failed, or nil if the error is not about updates: P4Runtime reports those as
// UNKNOWN with a p4.v1.Error for each.
func perUpdate(err error, n int) []*p4.Error {
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.Unknown {
		return nil
	}
	var out []*p4.Error
	for _, d := range st.Details() {
		e, ok := d.(*p4.Error)
		if !ok {
			return nil
		}
		out = append(out, e)
	}
	if len(out) != n {
		return nil
	}
	return out
}

// transient says whether trying again may help.
func transient(c codes.Code) bool {
	return c == codes.Unavailable || c == codes.Aborted || c == codes.DeadlineExceeded
}

// errEndless: the switch sends entries for longer than it takes to send all that it may have.
var errEndless = fmt.Errorf("%w to the end: it has sent entries for %v", ErrSilent, readTime)

// silence is the error of a call: one that wraps ErrSilent if that is why ctx has ended.
func silence(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrSilent) {
		return cause
	}
	return err
}
