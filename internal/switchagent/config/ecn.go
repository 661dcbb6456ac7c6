package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/internal/strictyaml"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// ECN says when packets that leave by a port are marked (RFC 3168), in the manner of
// RED: never up to a queue of KMin, always above KMax, and in between with a
// probability that rises from 0 to PMax.
type ECN struct {
	Off  bool    `yaml:"marking" words:"on,off"`
	KMin Bytes   `yaml:"kmin"`
	KMax Bytes   `yaml:"kmax"`
	PMax float64 `yaml:"pmax"`
	// Unit is the size of one step of the queue depth that the switch gives its
	// program. Where the switch counts packets, it is their average size.
	Unit Bytes `yaml:"unit"`
}

// The defaults are for links of 10 to 100 Gb/s; on slower ones they allow more
// delay. DefaultUnit is a RoCE packet with a path MTU of 1024.
const (
	DefaultKMin = 50_000
	DefaultKMax = 500_000
	DefaultPMax = 0.01
	DefaultUnit = 1100
)

func (e *ECN) setDefaults(f *strictyaml.Faults) {
	const remedy = `"marking: off" marks no packets`
	strictyaml.DefaultAbove0(f, "ecn.kmin", &e.KMin, DefaultKMin, remedy)
	strictyaml.DefaultAbove0(f, "ecn.kmax", &e.KMax, DefaultKMax, remedy)
	strictyaml.DefaultAbove0(f, "ecn.pmax", &e.PMax, DefaultPMax, remedy)
	strictyaml.DefaultAbove0(f, "ecn.unit", &e.Unit, DefaultUnit, remedy)
}

// Steps returns KMin and KMax as depths that the switch tells.
func (e ECN) Steps() (kmin, kmax uint32) {
	return uint32(e.KMin / e.Unit), uint32(e.KMax / e.Unit)
}

func (e ECN) check(k *checker) {
	if e.KMin > e.KMax {
		k.Add("ecn.kmin", "%d bytes are more than kmax, %d", e.KMin, e.KMax)
	}
	if most := e.Unit * switchspec.MaxDepth; e.KMax > most {
		k.Add("ecn.kmax", "%d bytes: want at most %d, which is as much as a switch tells in units of %d", e.KMax, most, e.Unit)
	}
	if e.Unit == 0 || e.Unit > maxUnit {
		k.Add("ecn.unit", "%d bytes: want 1 to %d", e.Unit, maxUnit)
	}
	if !(e.PMax > 0 && e.PMax <= 1) { // nor NaN
		k.Add("ecn.pmax", "%v: want a probability, more than 0 and at most 1", e.PMax)
	}
}

// maxUnit is a jumbo frame.
const maxUnit = 10_000

// Bytes is a number of bytes.
type Bytes uint64

// multiples are what parseBytes understands behind a number.
var multiples = []struct {
	unit string
	n    uint64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"KB", 1e3}, {"MB", 1e6}, {"B", 1}}

func parseBytes(s string) (Bytes, error) {
	number, factor := s, uint64(1)
	for _, m := range multiples {
		if n, ok := strings.CutSuffix(s, m.unit); ok {
			number, factor = n, m.n
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("config: bytes: %w", err)
	}
	return Bytes(n * factor), nil
}
