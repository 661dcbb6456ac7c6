// Package bmv2 holds what p4c made of p4src: the JSON that bmv2 and the embedded
// switch run, and the P4Info that describes it to P4Runtime clients.
//
// Both are committed, so that build, run and test need no p4c. After a
// change of p4src, "make p4" compiles them anew (it needs p4c-bm2-ss); a test
// fails as long as sources and artifacts differ. The script simple_switch_grpc
// beside this file starts bmv2 with them.
package bmv2

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"

	"github.com/mcrdma/mcrdma/internal/made"
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
	Sources   string // hash of the sources, see made.HashSources
	Artifacts string // hash of JSON and P4Info, see HashArtifacts
	P4C       string // version of the compiler
}

//go:embed made.txt
var text string

// Origin returns what JSON and P4Info were made from.
func Origin() Made {
	return Made{Sources: made.Value(text, "sources"), Artifacts: made.Value(text, "artifacts"), P4C: made.Value(text, "p4c")}
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
