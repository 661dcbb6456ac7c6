package purity

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestStories: the tables of tests/scenario name each test of the packages that they are about, and no
// other: who takes a test away says what replaces it.
func TestStories(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "tests", "scenario", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(text), "\n## ")
	row, name, decl := regexp.MustCompile(`(?m)^\| ([^|]*) \|`), regexp.MustCompile(`\b(?:Test|Fuzz)\w+`), regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	tables := 0
	for _, part := range parts[1:] {
		dir, rest, _ := strings.Cut(part, "\n")
		if !strings.Contains(dir, "/") {
			continue
		}
		tables++
		listed, there := map[string]bool{}, map[string]bool{"TestMain": true}
		for _, r := range row.FindAllStringSubmatch(rest, -1) {
			for _, n := range name.FindAllString(r[1], -1) {
				listed[n] = true
			}
		}
		files, _ := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*_test.go"))
		for _, f := range files {
			code, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range decl.FindAllStringSubmatch(string(code), -1) {
				if there[d[1]] = true; !listed[d[1]] && d[1] != "TestMain" {
					t.Errorf("tests/scenario/README.md: %s of %s is not in the table: add it to a row, with the story that replaces it or a dash", d[1], dir)
				}
			}
		}
		for n := range listed {
			if !there[n] {
				t.Errorf("tests/scenario/README.md: %s has no %s any longer: say under \"Tests that went\" what replaces it", dir, n)
			}
		}
	}
	if tables != 3 {
		t.Errorf("%d tables", tables)
	}
}
