package program

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"unicode/utf8"
)

// The two kinds of reasons for which Load rejects a program.
var (
	// ErrUnsupported marks a program that may be correct but uses something that the embedded
	// switch does not support. Rewrite that part of the P4 program.
	ErrUnsupported = errors.New("not supported by the embedded switch")
	// ErrInvalid marks JSON that violates its format, so that it was not written by p4c's bmv2 back
	// end, or not for v1model. Compile again.
	ErrInvalid = errors.New("invalid bmv2 JSON")
)

// LoadError says what Load rejected, and why.
type LoadError struct {
	Construct string // the construct, such as `action "ingress.drop", primitive "foo"`
	Source    Source // source position; only the program's file if the JSON has no more
	Reason    string
	Kind      error // ErrUnsupported or ErrInvalid
}

// Error returns "file.p4:12: construct: reason: kind", without the position if it is unknown.
func (e *LoadError) Error() string {
	s := fmt.Sprintf("%s: %s: %v", e.Construct, e.Reason, e.Kind)
	if e.Source != (Source{}) {
		s = e.Source.String() + ": " + s
	}
	return s
}

// Unwrap returns ErrUnsupported or ErrInvalid.
func (e *LoadError) Unwrap() error { return e.Kind }

// String returns "file.p4:12", with the last element of the file's path; without the line if only
// the file is known, and "?" if nothing is known.
func (s Source) String() string {
	switch {
	case s.File == "":
		return "?"
	case s.Line == 0:
		return filepath.Base(s.File)
	}
	return filepath.Base(s.File) + ":" + strconv.Itoa(s.Line)
}

// refusal carries a LoadError, as a panic, from the loader's functions up to Load.
type refusal struct{ err *LoadError }

// shorten truncates text from the JSON for messages.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}

func quote(s string) string { return strconv.Quote(shorten(s, 100)) }
