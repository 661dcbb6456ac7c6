package rocev2

import (
	"math/bits"
	"path/filepath"
	"testing"

	"github.com/mcrdma/mcrdma/internal/pcapfile"
)

// captured returns the frames of all captures in testdata, all of which are
// RoCEv2.
func captured(tb testing.TB) [][]byte {
	tb.Helper()
	names, err := filepath.Glob("testdata/*.pcap")
	if err != nil {
		tb.Fatal(err)
	}
	var frames [][]byte
	for _, name := range names {
		fs, err := pcapfile.ReadFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		for _, f := range fs {
			if f.Len != len(f.Data) {
				tb.Fatalf("%s holds a cut-off frame", name)
			}
			frames = append(frames, f.Data)
		}
	}
	if len(frames) < 100 {
		tb.Fatalf("%d frames in testdata/*.pcap, want more than 100", len(frames))
	}
	return frames
}

func TestICRCOfCaptures(t *testing.T) {
	for i, f := range captured(t) {
		ip := f[EthernetLen:]
		if !VerifyICRC(ip) {
			t.Errorf("frame %d: ICRC %x, computed %08x", i, ip[len(ip)-4:], bits.ReverseBytes32(ICRC(ip[:len(ip)-4])))
		}
	}
}
