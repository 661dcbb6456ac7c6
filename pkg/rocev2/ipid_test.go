package rocev2

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func TestSolveIPIDOfCaptures(t *testing.T) {
	for i, f := range captured(t) {
		ip := bytes.Clone(f[EthernetLen:])
		n := len(ip) - ICRCLen
		want := binary.BigEndian.Uint16(ip[4:])
		received := binary.LittleEndian.Uint32(ip[n:])
		ip[4], ip[5] = 0, 0
		computed := ICRC(ip[:n])
		id, ok := SolveIPID(received, computed, n-6)
		if id != want || !ok {
			t.Fatalf("frame %d: %#x, %v, want %#x", i, id, ok, want)
		}
		ip[4], ip[5] = 0x12, 0x34
		if id, ok := SolveIPID(received, ICRC(ip[:n]), n-6); id != want^0x1234 || !ok {
			t.Fatalf("frame %d, from another identification: %#x, %v, want %#x", i, id, ok, want^0x1234)
		}
		ip[4], ip[5] = 0, 0
		if id, ok = SolveIPID(received^1<<7, computed, n-6); ok {
			t.Fatalf("frame %d: a damaged ICRC is explained by identification %#x", i, id)
		}
		for at := 12; at < n; at++ {
			ip[at] ^= 0x10
			if id, ok := SolveIPID(received, ICRC(ip[:n]), n-6); ok && covered(at, IPv4Len) {
				t.Fatalf("frame %d: damage of byte %d is explained by identification %#x", i, at, id)
			}
			ip[at] ^= 0x10
		}
	}
}

// Against brute force: for random ICRCs the one identification that explains
// them is found, or none if there is none.
func TestSolveIPIDBruteForce(t *testing.T) {
	for _, n := range []int{38, 44, 1060, 4130} {
		ip := make([]byte, n+6)
		ip[0] = 0x45
		computed := slowICRC(ip)
		explains := map[uint32]uint16{}
		for id := range 1 << 16 {
			binary.BigEndian.PutUint16(ip[4:], uint16(id))
			explains[ICRC(ip)] = uint16(id)
		}
		if len(explains) != 1<<16 {
			t.Fatalf("n = %d: %d different ICRCs for 65536 identifications", n, len(explains))
		}
		for icrc, want := range explains {
			if id, ok := SolveIPID(icrc, computed, n); id != want || !ok {
				t.Fatalf("n = %d: %#x, %v, want %#x", n, id, ok, want)
			}
			// Also with what a third differing byte would add.
			for _, near := range []uint32{icrc ^ 1<<(want%32), icrc ^ shift(1<<(16+want%16), uint32(n+2))} {
				_, want := explains[near]
				if _, ok := SolveIPID(near, computed, n); ok != want {
					t.Fatalf("n = %d, ICRC %#x: explained: %v, want %v", n, near, ok, want)
				}
			}
		}
	}
}
