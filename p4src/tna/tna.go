// Package tna holds what p4c made of shim.p4, which has the merging of the Tofino program run on v1model: the JSON for
// bmv2 and the embedded switch.
//
// As in package bmv2, it is committed, and a test fails as long as it and the sources differ. "make p4-tna" makes it anew.
package tna

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"io/fs"

	"github.com/mcrdma/mcrdma/internal/made"
)

// Shim is shim.p4 in bmv2's JSON format.
//
//go:embed shim.json
var Shim []byte

// Made says what the shim was made from: the hash of the sources, its own, and the compiler; and what the compiler for
// Tofino says that the program of these sources takes of each chip.
//
//go:embed made.txt
var Made string

// Hash is the SHA-256 over the sources in dir, and over the shim.
func Hash(dir fs.FS, shim []byte) (sources, artifact string, err error) {
	sources, err = made.HashSources(dir, "*.p4")
	return sources, fmt.Sprintf("%x", sha256.Sum256(shim)), err
}
