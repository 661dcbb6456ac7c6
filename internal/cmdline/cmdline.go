// Package cmdline is the common part of all programs' command lines: sizes as values, usage errors,
// and, for programs without subcommands, flags and help like cobra's.
package cmdline

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes.
const (
	ExitOK      = 0
	ExitFailure = 1 // something failed
	ExitUsage   = 2 // the program was called wrongly

	ExitInterrupted = 130 // it was ended by Ctrl-C before it was done, as a shell reports it: 128 + SIGINT
)

// ErrInterrupted ends a program that was interrupted before it was done.
var ErrInterrupted = errors.New("interrupted")

// A UsageError tells that the command line is wrong.
type UsageError struct{ error }

// Usage makes an error one of usage.
func Usage(err error) error { return UsageError{err} }

// Usagef makes an error of usage.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Unwrap returns the error itself.
func (e UsageError) Unwrap() error { return e.error }

// Parse reads the flags of a program. For --help it writes usage and the flags to help, and
// returns pflag.ErrHelp. All other errors are of usage.
func Parse(f *pflag.FlagSet, usage string, args []string, help io.Writer) error {
	f.SortFlags = false
	f.Usage = func() {} // an error is told by Exit
	err := f.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(help, "%s\nFlags:\n%s  -h, --help   this help\n", usage, f.FlagUsages())
		return err
	case err != nil:
		return Unknown(f, err)
	}
	return nil
}

// Clean replaces what controls a terminal in a text, except for newlines and tabs.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// Exit says on stderr what was wrong, and returns the program's exit code. Errors may have texts of
// other hosts in them.
func Exit(name string, err error, stderr io.Writer) int {
	switch {
	case err == nil, errors.Is(err, pflag.ErrHelp):
		return ExitOK
	case errors.As(err, new(UsageError)):
		fmt.Fprintf(stderr, "%s: %s\nSee \"%[1]s --help\".\n", name, Clean(err.Error()))
		return ExitUsage
	}
	fmt.Fprintf(stderr, "%s: %s\n", name, Clean(err.Error()))
	if errors.Is(err, ErrInterrupted) {
		return ExitInterrupted
	}
	return ExitFailure
}

// Unknown makes an error of parsing one of usage. For a flag that there is not it names the one
// that was perhaps meant, for a time without a unit that it needs one, and for another value what it
// has to be.
func Unknown(f *pflag.FlagSet, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		short := unknown.GetSpecifiedShortnames()
		if _, bad := strconv.ParseFloat(short, 64); bad == nil {
			return Usagef("-%s: no number here is negative", short)
		}
		if like := similar(f, unknown.GetSpecifiedName()); like != "" {
			return Usagef("%w; did you mean --%s?", err, like)
		}
	}
	wrong, ok := errors.AsType[*pflag.InvalidValueError](err)
	if ok && wrong.GetFlag().Value.Type() == "duration" {
		name, value := wrong.GetFlag().Name, wrong.GetValue()
		if _, bad := strconv.ParseFloat(value, 64); bad == nil {
			return Usagef("--%s %s: the unit is missing: %[2]ss, for seconds, or %[2]sms", name, value)
		}
		return Usagef("--%s %q is not a time, such as 5s, 500ms or 1m30s", name, value)
	}
	if number, ok := errors.AsType[*strconv.NumError](err); ok && wrong != nil {
		what := "a number"
		switch t := wrong.GetFlag().Value.Type(); {
		case t == "bool":
			what = "true or false"
		case strings.Contains(t, "int"):
			what = "a whole number"
		}
		if errors.Is(number, strconv.ErrRange) {
			what += " in its range"
		}
		return Usagef("--%s %q is not %s", wrong.GetFlag().Name, wrong.GetValue(), what)
	}
	return UsageError{err}
}

// similar is a flag with a name like that; "": there is none.
func similar(f *pflag.FlagSet, name string) string {
	names := &cobra.Command{}
	f.VisitAll(func(x *pflag.Flag) {
		if !x.Hidden {
			names.AddCommand(&cobra.Command{Use: x.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	for names.SuggestionsMinimumDistance = 1; len(name) > 1 && names.SuggestionsMinimumDistance <= 2; names.SuggestionsMinimumDistance++ {
		if like := names.SuggestionsFor(name); len(like) > 0 { // the nearest
			return like[0]
		}
	}
	return ""
}

// A Size is the value of a flag: bytes, with K, M, G, T, P or E for KiB, MiB, and so on.
type Size int

const units = "KMGTPE"

// ParseSize reads a size.
func ParseSize(s string) (int, error) {
	digits, shift := s, 0
	if n := len(s); n > 0 {
		if i := strings.IndexByte(units, s[n-1]&^0x20); i >= 0 {
			digits, shift = s[:n-1], 10*(i+1)
		}
	}
	n, err := strconv.Atoi(digits)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && n > math.MaxInt>>shift:
		return 0, fmt.Errorf("%q is out of range: a number of bytes is below 8E", s)
	case err != nil || n < 0:
		return 0, fmt.Errorf("%q is not a number of bytes, such as 4096, 64K or 8M; units are up to E, each 1024 times the one before", s)
	}
	return n << shift, nil
}

// String is what ParseSize reads.
func (v *Size) String() string {
	for i := len(units) - 1; i >= 0; i-- {
		if shift := 10 * (i + 1); *v != 0 && *v&(1<<shift-1) == 0 {
			return strconv.Itoa(int(*v>>shift)) + units[i:i+1]
		}
	}
	return strconv.Itoa(int(*v))
}

// Type implements pflag.Value.
func (v *Size) Type() string { return "bytes" }

// Set implements pflag.Value.
func (v *Size) Set(s string) error {
	n, err := ParseSize(s)
	*v = Size(n)
	return err
}
