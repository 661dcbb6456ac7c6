// Package bmv2 holds what p4c made of p4src: the JSON that bmv2 and the embedded
// switch run, and the P4Info that describes it to P4Runtime clients.
//
// Both are committed, so that build, run and test need no p4c. After a
// change of p4src, "make p4" compiles them anew (it needs p4c-bm2-ss); a test
// fails as long as sources and artifacts differ. The script simple_switch_grpc
// beside this file starts bmv2 with them.
//
// The package imports the standard library only.
package bmv2

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"sort"
	"strings"
)

// JSON is the program in bmv2's JSON format.
//
//go:embed mcrdma.json
var JSON []byte

// P4Info describes the program's tables, actions, counters and headers: a
// p4.config.v1.P4Info message in protobuf's text format.
//
//go:embed mcrdma.p4info.txtpb
var P4Info []byte

// CPUPort is the program's port of packet-in and packet-out. Switches are
// started with it.
const CPUPort = 510

// Made says what JSON and P4Info were made from.
type Made struct {
	Sources   string // hash of the sources, see HashSources
	Artifacts string // hash of JSON and P4Info, see HashArtifacts
	P4C       string // version of the compiler
}

//go:embed made.txt
var made string

// Origin returns what JSON and P4Info were made from.
func Origin() Made {
	var m Made
	for line := range strings.Lines(made) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key {
		case "sources":
			m.Sources = value
		case "artifacts":
			m.Artifacts = value
		case "p4c":
			m.P4C = value
		}
	}
	return m
}

// String is the form in which Made is stored.
func (m Made) String() string {
	return fmt.Sprintf("sources %s\nartifacts %s\np4c %s\n", m.Sources, m.Artifacts, m.P4C)
}

// HashArtifacts is the SHA-256 over the two artifacts.
func HashArtifacts(json, p4info []byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d %d\n", len(json), len(p4info))
	h.Write(json)
	h.Write(p4info)
	return hex.EncodeToString(h.Sum(nil))
}

// HashSources is the SHA-256 over the names and contents of the .p4 files in
// dir.
func HashSources(dir fs.FS) (string, error) {
	names, err := fs.Glob(dir, "*.p4")
	if err != nil {
		return "", err
	}
	sort.Strings(names)
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
