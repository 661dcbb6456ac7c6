package docs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestExamplesUsage: all examples have --help, and tell a flag that they do not have with exit
// code 2, as the commands do.
func TestExamplesUsage(t *testing.T) {
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", "./examples/...")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	programs, err := os.ReadDir(dir)
	if err != nil || len(programs) < 5 {
		t.Fatalf("%d examples, %v", len(programs), err)
	}
	for _, p := range programs {
		for flag, want := range map[string]int{"--help": 0, "-h": 0, "--no-such-flag": 2} {
			out, err := exec.CommandContext(t.Context(), filepath.Join(dir, p.Name()), flag).CombinedOutput() //nolint:gosec // it was just built
			code := 0
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				code = exit.ExitCode()
			}
			if code != want || !strings.Contains(string(out), p.Name()) || want != 0 && !strings.Contains(string(out), "no-such-flag") {
				t.Errorf("%s %s: %v, exit code %d\n%s", p.Name(), flag, err, code, out)
			}
		}
	}
}

// TestHelpDescribesJSON: the help of each command that prints JSON says what is in it.
func TestHelpDescribesJSON(t *testing.T) {
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", "./cmd/...")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	programs, err := os.ReadDir(dir)
	if err != nil || len(programs) != 5 {
		t.Fatalf("%d programs, %v", len(programs), err)
	}
	for _, p := range programs {
		if out, err := exec.CommandContext(t.Context(), filepath.Join(dir, p.Name()), "man", filepath.Join(dir, "man")).CombinedOutput(); err != nil { //nolint:gosec // it was just built
			t.Fatalf("%s man: %v\n%s", p.Name(), err, out)
		}
	}
	pages, err := filepath.Glob(filepath.Join(dir, "man", "man1", "*.1"))
	if err != nil || len(pages) < 50 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, name := range pages {
		page, err := os.ReadFile(name) //nolint:gosec // it was just made
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(page), "the same as --output json") && !strings.Contains(string(page), "The JSON ") && !strings.Contains(string(page), "With -o json") {
			t.Errorf("%s does not say what the JSON is", filepath.Base(name))
		}
	}
}
