// Package findings has the findings of all doctor commands: what is wrong, how severe it is, why,
// and what to do.
package findings

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// A Severity is the severity of a finding.
type Severity uint8

// Severities, the worst last.
const (
	Note    Severity = iota // worth knowing
	Warning                 // works, but not well, or not for long
	Error                   // does not work
)

func (s Severity) String() string { return [...]string{"note", "warning", "error"}[s] }

// MarshalText makes severities words in JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// A Finding is a problem, or a note.
type Finding struct {
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject"` // a switch, or "interface NAME"
	What     string   `json:"what"`
	Why      string   `json:"why,omitempty"`
	Do       string   `json:"do,omitempty"`
}

// A List collects findings.
type List []Finding

// Add adds a finding.
func (l *List) Add(s Severity, subject, what, why, do string) {
	*l = append(*l, Finding{Severity: s, Subject: subject, What: what, Why: why, Do: do})
}

// Sorted returns the findings sorted by severity, the worst first.
func (l List) Sorted() []Finding {
	slices.SortStableFunc(l, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return l
}

// Failed returns an error if a finding has at least that severity.
func Failed(findings []Finding, bad Severity) error {
	if slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity >= bad }) {
		return errors.New("not all is well")
	}
	return nil
}

// Show writes findings as JSON or as text, and then returns the error of Failed.
func Show(w io.Writer, out *cli.Output, list []Finding, looked string, bad Severity) (err error) {
	if out.IsJSON() {
		err = out.JSON(w, struct {
			Findings []Finding `json:"findings"`
		}{append([]Finding{}, list...)})
	} else {
		err = Text(w, list, looked, cli.Colored(w))
	}
	return cmp.Or(err, Failed(list, bad))
}

// Text writes findings as text; looked names what was checked. Without findings it says that all is
// well.
func Text(w io.Writer, list []Finding, looked string, color bool) error {
	var b strings.Builder
	var count [Error + 1]int
	for _, f := range list {
		count[f.Severity]++
		word := fmt.Sprintf("%-8s", strings.ToUpper(f.Severity.String()))
		if color {
			word = severityColor[f.Severity] + word + "\x1b[0m"
		}
		fmt.Fprintf(&b, "%s %s: %s\n", word, f.Subject, f.What)
		if f.Why != "" {
			fmt.Fprintf(&b, "         why: %s\n", f.Why)
		}
		if f.Do != "" {
			fmt.Fprintf(&b, "         do:  %s\n", f.Do)
		}
	}
	var parts []string
	for _, s := range []Severity{Error, Warning, Note} {
		if count[s] > 0 {
			parts = append(parts, cli.Plural(count[s], s.String()))
		}
	}
	if len(parts) == 0 {
		parts = []string{"all is well"}
	} else {
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%s; looked at %s\n", strings.Join(parts, ", "), looked)
	_, err := io.WriteString(w, b.String())
	return err
}

var severityColor = [...]string{Note: "\x1b[36m", Warning: "\x1b[33m", Error: "\x1b[31m"}
