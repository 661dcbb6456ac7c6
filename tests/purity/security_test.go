package purity

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityTable: what docs/security.md says of attacks can be looked up. Each row
// names a counter that the code has, and tests that are there.
func TestSecurityTable(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(root, "docs/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := attacks(t, string(doc))
	if len(rows) < 15 {
		t.Fatalf("only %d attacks are found in the table", len(rows))
	}
	code := sources(t)
	for _, r := range rows {
		counters, tests := quoted(r.shows), quoted(r.tests)
		if len(counters) == 0 || len(tests) == 0 {
			t.Errorf("%s: no counter or no test is named", r.attack)
		}
		for _, c := range counters {
			for _, word := range words(c) {
				if !code.names(word) {
					t.Errorf("%s: nothing outside of tests is called %q, of the counter %q", r.attack, word, c)
				}
			}
		}
		for _, name := range tests {
			if err := code.test(name); err != "" {
				t.Errorf("%s: %s: %s", r.attack, name, err)
			}
		}
	}
}

// A row is one of the table's.
type row struct{ attack, shows, tests string }

func attacks(t *testing.T, doc string) (rows []row) {
	t.Helper()
	_, section, ok := strings.Cut(doc, "\n## Attacks\n")
	if !ok {
		t.Fatal("docs/security.md has no section of attacks")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) == 1 || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| attack ") {
			continue
		}
		if len(cells) != 6 {
			t.Fatalf("a row of %d columns: %s", len(cells)-2, line)
		}
		rows = append(rows, row{strings.TrimSpace(cells[1]), cells[3], cells[4]})
	}
	return rows
}

var code = regexp.MustCompile("`([^`]+)`")

// quoted is what stands between back-quotes.
func quoted(s string) (list []string) {
	for _, m := range code.FindAllStringSubmatch(s, -1) {
		list = append(list, m[1])
	}
	return list
}

var labeled = regexp.MustCompile(`^(\w+)\{\w+="(\w+)"\}$`)

// words are the names that a counter's consists of: a metric and its label's value, or
// a counter of a switch and its cell, or just a name.
func words(counter string) []string {
	if m := labeled.FindStringSubmatch(counter); m != nil {
		return m[1:]
	}
	return strings.Fields(counter)
}

// A tree is the repository's code, tests apart.
type tree struct{ code, program []byte }

func sources(t *testing.T) (all tree) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := filepath.Base(path)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name == "testdata" || name == "out" || name == "tests" || name != ".." && strings.HasPrefix(name, ".") {
				return fs.SkipDir
			}
			return nil
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			b, err := os.ReadFile(path)
			all.code = append(all.code, b...)
			return err
		case strings.HasSuffix(name, ".p4"):
			b, err := os.ReadFile(path)
			all.program = append(all.program, b...)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// program is the prefix of a program's metrics.
var program = regexp.MustCompile(`^mcrdma_(agent|daemon|block)_`)

// names says whether the code has a name, as a string, or the program a counter. Names
// of metrics are put together from a prefix and the rest, and histograms have a count.
func (s tree) names(word string) bool {
	rest := strings.TrimSuffix(program.ReplaceAllString(word, ""), "_count")
	for _, w := range []string{word, rest, strings.TrimPrefix(word, "ingress.")} {
		if bytes.Contains(s.code, []byte(`"`+w+`"`)) {
			return true
		}
	}
	if bytes.Contains(s.code, []byte("mcrdmav1.Reason_"+word)) {
		return true
	}
	field := regexp.MustCompile(`(?m)^\t` + regexp.QuoteMeta(word) + ` +uint64`)
	return bytes.Contains(s.program, []byte(strings.TrimPrefix(word, "ingress.")+";")) || field.Match(s.code) // an instance, a field
}

// test says what is wrong with the name of a test: "package TestName", with "/sub" for
// a part of it, a file of tests/ptf with a class, or a target of the Makefile.
func (s tree) test(name string) string {
	where, what, ok := strings.Cut(name, " ")
	if where == "make" {
		b, err := os.ReadFile(filepath.Join(root, "Makefile"))
		if err != nil || !bytes.Contains(b, []byte("\n"+what+":")) {
			return "there is no such target"
		}
		return ""
	}
	if !ok {
		return "want a package and a test"
	}
	pattern, form := filepath.Join(root, where, "*_test.go"), "func %s("
	if strings.HasSuffix(where, ".py") {
		pattern, form = filepath.Join(root, where), "class %s("
	}
	what, sub, _ := strings.Cut(what, "/")
	files, err := filepath.Glob(pattern)
	if err != nil {
		return err.Error()
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err.Error()
		}
		if !bytes.Contains(b, []byte(strings.Replace(form, "%s", what, 1))) {
			continue
		}
		if sub != "" && !bytes.Contains(b, []byte(`"`+strings.ReplaceAll(sub, "_", " ")+`"`)) {
			return "the test has no part of that name"
		}
		return ""
	}
	return "there is no such test"
}
