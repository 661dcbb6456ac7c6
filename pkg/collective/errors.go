package collective

import (
	"errors"
	"fmt"
	"strings"
)

// Kinds of errors; test with errors.Is.
var (
	// ErrLost: ranks were lost; errors.As finds an *Error that names them. Shrink makes a Comm of the others.
	ErrLost = errors.New("ranks were lost")
	// ErrGivenUp: an operation was given up, here or at another rank, because its context ended, it
	// panicked, or another rank called a different operation. Shrink makes a Comm that goes on.
	ErrGivenUp = errors.New("an operation was given up")
	// ErrExcluded: the others go on without this rank, because they could not reach it.
	ErrExcluded = errors.New("the other ranks go on without this one")
	// ErrMismatch: the ranks' calls differ.
	ErrMismatch = errors.New("the ranks' calls differ")
	// ErrClosed: the Comm is closed.
	ErrClosed = errors.New("the Comm is closed")
)

// A Lost describes a lost rank.
type Lost struct {
	Rank int    // of the Comm
	Host string // as in Config.Hosts
	Why  string // for people; empty: another rank reported the loss
}

// An Error says why operations of a Comm have failed. It is one of the kinds above.
type Error struct {
	Lost  []Lost // ErrLost and ErrExcluded: may be several
	kind  error
	text  string // more, for people
	cause error  // nil: there is none
}

// Error names the lost ranks, or the one that gave up, and says why.
func (e *Error) Error() string {
	var list []string
	kind := e.kind
	if e.text != "" && kind == ErrLost { //nolint:errorlint // it is one of the kinds itself
		kind = ErrGivenUp
	}
	if kind != ErrLost { //nolint:errorlint // likewise
		list = append(list, because(kind.Error(), e.text))
	}
	for _, l := range e.Lost {
		list = append(list, because(fmt.Sprintf("rank %d (%s) was lost", l.Rank, l.Host), l.Why))
	}
	return strings.Join(list, "; ")
}

func because(what, why string) string { return strings.TrimSuffix(what+": "+why, ": ") }

// Unwrap returns the kind, and a context's error if that was the cause.
func (e *Error) Unwrap() []error {
	if e.cause != nil {
		return []error{e.kind, e.cause}
	}
	return []error{e.kind}
}
