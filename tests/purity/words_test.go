package purity

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// avoided are metaphors and private words, and the words that a reader would search for
// instead. They also count as parts of names.
var avoided = []struct{ bad, good string }{
	{"graveyard", "a cache of what has ended"}, {"grave", "what has ended"}, {"graves", "what has ended"},
	{"burial", "an entry"}, {"bury", "add, remove"}, {"buried", "removed"}, {"insist", "retry"},
	{"forsake", "end"}, {"forsaken", "ended"}, {"barren", "without progress"}, {"wish", "request"}, {"wishes", "requests"},
	{"fate", "outcome"}, {"fates", "outcomes"}, {"seize", "take"}, {"seized", "taken"}, {"debt", "cleanup"}, {"debts", "cleanups"},
	{"kicker", "wakeup"}, {"told told", "announced"}, {"isnt", "negated"},
	{"nobody", "no host, no caller, ..."}, {"somebody", "another host, a caller, ..."}, {"anybody", "any host, any client, ..."},
	{"neighbour", "neighbor"}, {"neighbours", "neighbors"}, {"colour", "color"}, {"colours", "colors"}, {"centre", "center"},
	{"behaviour", "behavior"}, {"dialled", "dialed"}, {"prioritised", "prioritized"}, {"labelled", "labeled"},
	{"tells of", "reports, describes, ..."}, {"tell of", "report, describe, ..."},
	{"told of", "notified of, given, ..."}, {"is over", "has ended"}, {"are over", "have ended"},
	{"everybody", "every member, all hosts, ..."}, {"whoever", "whichever host, the caller, ..."},
}

// TestWords: no name and no sentence of the project has one of the words.
func TestWords(t *testing.T) {
	root := filepath.Join("..", "..")
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := d.Name(); {
		case d.IsDir() && slices.Contains([]string{".git", "bin", "out", "lab", "testdata", "node_modules"}, name):
			return filepath.SkipDir
		case d.IsDir(), name == "words_test.go", strings.HasSuffix(name, ".pb.go"),
			!slices.Contains([]string{".go", ".md", ".proto", ".p4", ".c", ".h", ".py", ".yaml"}, filepath.Ext(name)):
			return nil
		}
		files++
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte("neighbour")) {
			text = ofProgram.ReplaceAll(text, nil)
		}
		if filepath.Ext(path) == ".p4" {
			text = inProgram.ReplaceAll(text, nil)
		}
		checkWords(t, path, split(text))
		return err
	})
	if err != nil || files < 500 {
		t.Errorf("%d files, %v", files, err)
	}
}

// split is a text in lower case, with a space where a word begins within a name.
func split(text []byte) string {
	var b strings.Builder
	b.Grow(len(text) * 5 / 4)
	for i, c := range text {
		if c >= 'A' && c <= 'Z' {
			if i > 0 && (text[i-1] >= 'a' && text[i-1] <= 'z' || text[i-1] >= '0' && text[i-1] <= '9') {
				b.WriteByte(' ')
			}
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}
	return b.String()
}

func checkWords(t *testing.T, path, text string) {
	for _, w := range avoided {
		if !strings.Contains(text, w.bad) {
			continue
		}
		for _, at := range regexp.MustCompile(`\b`+w.bad+`\b`).FindAllStringIndex(text, -1) {
			t.Errorf("%s:%d: %q: say %q or the like", path, 1+strings.Count(text[:at[0]], "\n"), w.bad, w.good)
		}
	}
}

// ofProgram matches names of the P4 program, which stay as they are compiled.
var ofProgram = regexp.MustCompile(`egress\.neighbour(\.neighbours)?|no_neighbour`)

// inProgram matches them where they are declared.
var inProgram = regexp.MustCompile(`(?i)\bneighbours?\b`)
