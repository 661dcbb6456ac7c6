// Package docs holds the tests of the documentation: every block of commands in a Markdown
// file of the repository is run, or the page says which test runs it, or why none does.
//
// A block of commands is fenced as sh, and the line above it is a comment:
//
//	<!-- run -->                      it is pasted into a shell and ends without an error
//	<!-- run until: TEXT -->          it says TEXT (or all of TEXT | TEXT); what it leaves
//	                                  running ends with the page
//	<!-- run, Ctrl-C after: TEXT -->  it is ended then
//	<!-- run each until: TEXT -->     each of its lines says TEXT, in a terminal of its own
//	<!-- run by PLACE NAME -->        the test NAME in the file or directory PLACE runs it
//	<!-- run by .ci/run -->           its first line is a step of continuous integration
//	<!-- not run: REASON -->
//
// One that shows a prompt and output is fenced as console, and not run by this package.
//
// With "<!-- all commands run by PLACE NAME -->" a page needs no more.
//
// The blocks of a page are run in order, in a fresh copy of the tree, with an empty home
// directory, the project's programs in PATH, and in a network namespace.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const top = "../.."

// A block is one of code, fenced or indented.
type block struct {
	line     int    // in the file, of its first line of code
	language string // of a fence; "indented" where there is none
	comment  string // in the line above
	text     string
}

var (
	comment  = regexp.MustCompile(`^<!-- (.*) -->$`)
	runBy    = regexp.MustCompile(`^(?:all commands )?run by (\S+)(?: (\S+))?$`)
	runUntil = regexp.MustCompile(`^run( each until|, Ctrl-C after| until): (.+)$`)
	// commands are what first words of commands look like in these pages.
	commands = regexp.MustCompile(`^(\$ |mininet> |(sudo |PATH=\S+ )*(make|go|git|for|export|cd|ip|sysctl|apt|apt-get|systemctl|tshark|curl|docker|` +
		`cmd-daemon|switchctl|mcbench|mcsim|hello|replicate|(\./)?(bin|examples|bmv2|scripts|tests|packaging)/\S+)( |$))`)
)

// pages are the Markdown files of the repository.
func pages(t *testing.T) (list []string) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(top, path)
		if d != nil && d.IsDir() && slices.Contains([]string{".git", "bin", "out", "lab"}, name) {
			return fs.SkipDir
		}
		if err == nil && strings.HasSuffix(name, ".md") && name != "CHANGELOG.md" {
			list = append(list, name)
		}
		return err
	})
	if err != nil || len(list) < 10 {
		t.Fatalf("pages %v: %v", list, err)
	}
	return list
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// blocks finds the blocks of a page.
func blocks(text string) (list []block) {
	lines := strings.Split(text, "\n")
	above := func(i int) string {
		if i > 0 {
			if m := comment.FindStringSubmatch(lines[i-1]); m != nil {
				return m[1]
			}
		}
		return ""
	}
	for i := 0; i < len(lines); i++ {
		language, fenced := strings.CutPrefix(lines[i], "```")
		indented := strings.HasPrefix(lines[i], "    ") && (i == 0 || lines[i-1] == "" || lines[i-1][0] == '#' || above(i) != "")
		if !fenced && !indented {
			continue
		}
		b := block{line: i + 2, language: language, comment: above(i)}
		if indented {
			b.line, b.language = i+1, "indented"
			for ; i < len(lines) && strings.HasPrefix(lines[i], "    "); i++ {
				b.text += lines[i][4:] + "\n"
			}
		} else {
			for i++; i < len(lines) && !strings.HasPrefix(lines[i], "```"); i++ {
				b.text += lines[i] + "\n"
			}
		}
		list = append(list, b)
	}
	return list
}

// hasCommands says whether a block looks like one of commands.
func (b block) hasCommands() bool {
	if b.language != "" && b.language != "indented" {
		return b.language == "sh" || b.language == "console" || b.language == "bash" || b.language == "shell" || b.language == "shell-session"
	}
	return slices.ContainsFunc(strings.Split(b.text, "\n"), commands.MatchString)
}

// wrong says what a block of commands lacks; empty: nothing.
func (b block) wrong() string {
	by := runBy.FindStringSubmatch(b.comment)
	switch {
	case b.language != "sh" && b.language != "console":
		return "has commands: fence it as sh, or with a prompt and output as console"
	case b.language == "console" && (b.comment == "run" || runUntil.MatchString(b.comment)):
		return "has a prompt: fence commands that are to be run as sh"
	case b.comment == "run" || runUntil.MatchString(b.comment) || strings.HasPrefix(b.comment, "not run: "):
		return ""
	case by == nil:
		return "is neither run nor says why not: see the comment of package tests/docs"
	case by[1] == ".ci/run":
		step, _, _ := strings.Cut(b.text, "\n")
		if ci, err := os.ReadFile(filepath.Join(top, by[1])); err != nil || !slices.Contains(strings.Split(string(ci), "\n"), step) {
			return "is no step of .ci/run: " + step
		}
		return ""
	}
	return absent(by[1], by[2])
}

// absent says that there is no such test, in Go or Python; empty: there is.
func absent(place, name string) string {
	files, _ := filepath.Glob(filepath.Join(top, place, "*_test.go"))
	for _, f := range append(files, filepath.Join(top, place)) {
		text, err := os.ReadFile(f)
		if err == nil && name != "" && (strings.Contains(string(text), "func "+name+"(t *testing.T") || strings.Contains(string(text), "class "+name+"(")) {
			return ""
		}
	}
	return "is run by a test that does not exist: " + place + " " + name
}

// Every block of commands is run, or says which test runs it, or why none does.
func TestBlocks(t *testing.T) {
	n := 0
	for _, page := range pages(t) {
		text := read(t, page)
		if all := regexp.MustCompile(`(?m)^<!-- (all commands run by .*) -->$`).FindStringSubmatch(text); all != nil {
			if why := (block{language: "sh", comment: all[1]}).wrong(); why != "" {
				t.Errorf("%s %s", page, why)
			}
			continue
		}
		for _, b := range blocks(text) {
			if !b.hasCommands() {
				if b.comment != "" && (b.comment == "run" || runBy.MatchString(b.comment) || runUntil.MatchString(b.comment)) {
					t.Errorf("%s:%d has no commands, but says %q", page, b.line, b.comment)
				}
				continue
			}
			n++
			if why := b.wrong(); why != "" {
				t.Errorf("%s:%d: the block %s\n%s", page, b.line, why, b.text)
			}
		}
	}
	t.Logf("%d blocks of commands", n)
}

// What TestBlocks refuses, and what it does not.
func TestRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"```sh\nmake\n```\n": "neither run nor says why",
		"<!-- run by tests/docs TestNothing -->\n```sh\nmake\n```\n": "does not exist",
		"<!-- run by .ci/run -->\n```sh\nmake nothing\n```\n":        "no step of",
		"<!-- run by .ci/run -->\n```sh\nmake test\n```\n":           "",
		"<!-- run by tests/docs TestRefuses -->\n```sh\nmake\n```\n": "",
		"<!-- run -->\n```sh\nmake\n```\n":                           "",
		"<!-- not run: no time -->\n```sh\nmake\n```\n":              "",
		"<!-- not run -->\n```sh\nmake\n```\n":                       "neither run nor says why",
		"text\n\n    sudo make mininet\n":                            "fence it as sh",
		"```\n$ switchctl status\n```\n":                             "fence it as sh",
	} {
		list := blocks(text)
		if len(list) != 1 || !list[0].hasCommands() {
			t.Errorf("%q: %+v", text, list)
		} else if got := list[0].wrong(); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"```\nPORT  NEIGHBOR\n```\n", "    name: h1\n", "```go\ngo f()\n```\n", "no block\n    at all\n"} {
		for _, b := range blocks(text) {
			if b.hasCommands() {
				t.Errorf("%q is taken for commands", text)
			}
		}
	}
}
