//go:build !race

package pipeline

import (
	"path/filepath"
	"testing"
)

// TestNoAllocations: once warm, a packet costs none.
func TestNoAllocations(t *testing.T) {
	for _, file := range fuzzed {
		var in [][]byte
		p := ready(t, file, func(b []byte) { in = append(in, b) })
		if p.opt.Log = nil; len(in) == 0 {
			in = [][]byte{roce(10, 1000), roce(0x11, 4)}
		}
		run := func() {
			for _, b := range in {
				p.Process(0, 1, b, func(uint16, []byte) {})
			}
		}
		run()
		if n := testing.AllocsPerRun(5, run); n != 0 {
			t.Errorf("%s: %v allocations for %d packets", filepath.Base(file), n, len(in))
		}
	}
}
