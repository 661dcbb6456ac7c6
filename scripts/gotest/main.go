// Command gotest runs go test with the arguments that it is given and prints,
// as Go does, one line per package and the output of what failed, and besides
// that every skipped test with its reason, so that nothing is left out
// silently. Its exit code is that of go test. With -v it also prints one line
// for each test that passed. That nothing ran at all is an error.
//
// With MCRDMA_MUST_RUN=1 in the environment, as in continuous integration, a
// skip counts as a failure, unless its reason says that it need not run there:
// "MCRDMA_LONG" for a test of the long mode, "optional:" for one that needs what
// not every machine has (IPv6, RDMA hardware).
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	code, err := run(os.Args[1:], os.Getenv("MCRDMA_MUST_RUN") == "1", os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
	}
	os.Exit(code)
}

func run(args []string, mustRun bool, w io.Writer) (int, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start go test: %w", err)
	}
	r := report{w: w, mustRun: mustRun, verbose: slices.Contains(args, "-v"), output: map[testID][]string{}}
	readErr := r.read(out)
	err = cmd.Wait()
	r.summary()
	var exit *exec.ExitError
	switch {
	case readErr != nil:
		return 1, fmt.Errorf("read go test's events: %w", readErr)
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1), nil
	case err != nil:
		return 1, err
	case r.passed+r.skipped == 0:
		return 1, errors.New("no test ran; is the pattern right?")
	case r.forbidden > 0:
		return 1, fmt.Errorf("%d tests were skipped that must run here (MCRDMA_MUST_RUN=1)", r.forbidden)
	}
	return 0, nil
}

// An event is one line of go test -json; see go doc test2json.
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of build output
}

type testID struct{ pkg, test string }

// A report turns events into what people want to read.
type report struct {
	w       io.Writer
	mustRun bool
	verbose bool
	// output holds the output of each running test until it ends.
	output                             map[testID][]string
	passed, skipped, failed, forbidden int
}

func (r *report) read(events io.Reader) error {
	in := bufio.NewReader(events)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprint(r.w, string(line)) // not an event: go's own complaint
			} else {
				r.event(&e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) event(e *event) {
	id := testID{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.w, e.Output)
	case "output":
		if e.Test != "" {
			r.output[id] = append(r.output[id], e.Output)
		} else if !noise(e.Output) {
			fmt.Fprint(r.w, e.Output)
		}
	case "pass", "skip", "fail":
		if e.Test == "" {
			r.orphans(e.Package)
			return
		}
		r.test(e.Action, id)
	}
}

// noise reports whether a package-level line says nothing that the package's
// ok or FAIL line does not.
func noise(line string) bool {
	return line == "PASS\n" || line == "FAIL\n" || strings.Contains(line, "[no test files]") ||
		strings.Contains(line, "no tests to run")
}

func (r *report) test(action string, id testID) {
	text := strings.Join(r.output[id], "")
	delete(r.output, id)
	switch action {
	case "pass":
		r.passed++
		switch {
		case strings.Contains(text, "WARNING: DATA RACE"): // another test fails by it
		case !r.verbose:
			return
		default:
			text = resultLine(text)
		}
	case "fail":
		r.failed++
	case "skip":
		r.skipped++
		if r.mustRun && !strings.Contains(text, "MCRDMA_LONG") && !strings.Contains(text, "optional:") {
			r.forbidden++
			fmt.Fprint(r.w, "MUST RUN: ")
		}
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "=== ") {
			fmt.Fprint(r.w, line)
		}
	}
}

// resultLine returns the line of a test's output that says how it ended.
func resultLine(text string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimLeft(line, " "), "--- ") {
			return line
		}
	}
	return ""
}

// orphans prints what tests of pkg wrote that never ended: the process died,
// and its last words are there.
func (r *report) orphans(pkg string) {
	for id, lines := range r.output {
		if id.pkg == pkg {
			fmt.Fprint(r.w, strings.Join(lines, ""))
			delete(r.output, id)
		}
	}
}

func (r *report) summary() {
	fmt.Fprintf(r.w, "tests: %d passed, %d skipped, %d failed\n", r.passed, r.skipped, r.failed)
}
