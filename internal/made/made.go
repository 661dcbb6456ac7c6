// Package made reads and writes the records of committed compiler output: files of keys and values,
// among them hashes of the sources. A test beside each record fails as long as sources and output
// differ.
package made

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// HashSources is the SHA-256 over the names and contents of the files in dir that match one of
// the patterns.
func HashSources(dir fs.FS, patterns ...string) (string, error) {
	var names []string
	for _, p := range patterns {
		found, err := fs.Glob(dir, p)
		if err != nil {
			return "", err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	h := sha256.New()
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Value returns the value of a key in a text, or "".
func Value(text, key string) string {
	for line := range strings.Lines(text) {
		if k, v, _ := strings.Cut(strings.TrimSpace(line), " "); k == key {
			return v
		}
	}
	return ""
}
