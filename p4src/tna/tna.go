// Package tna holds what compilers made of this directory: of shim.p4, which has the merging run on v1model, the
// JSON for bmv2 and the embedded switch; of tna.p4, what it takes of Tofino and Tofino 2.
//
// As in package bmv2, both are committed, and a test fails as long as they and the sources differ. "make p4-tna" makes them anew.
//
// It imports bmv2 and the standard library.
package tna

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"io/fs"
	"strings"

	"github.com/mcrdma/mcrdma/bmv2"
)

// Shim is shim.p4 in bmv2's JSON format.
//
//go:embed shim.json
var Shim []byte

// Made says what compilers made of which sources: a key and a value in each line. It has the hash of the sources,
// that of what precedes it, and then the resources that the program takes of each target.
//
//go:embed made.txt
var Made string

// Hash is the SHA-256 over the sources in dir, and over what was made of them.
func Hash(dir fs.FS, shim []byte) (sources, artifacts string, err error) {
	sources, err = bmv2.HashSources(dir)
	return sources, fmt.Sprintf("%x", sha256.Sum256(shim)), err
}

// Value returns the value of a key in Made.
func Value(key string) string {
	for line := range strings.Lines(Made) {
		if k, v, _ := strings.Cut(strings.TrimSpace(line), " "); k == key {
			return v
		}
	}
	return ""
}
