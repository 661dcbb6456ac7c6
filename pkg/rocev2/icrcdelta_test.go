package rocev2

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

func TestICRCDelta(t *testing.T) {
	fields := []struct {
		name   string
		off, n int // offset from the end of the IPv4 header if not below 20
	}{
		{"total length", 2, 2}, {"id", 4, 2}, {"ttl to checksum", 8, 4}, {"source", 12, 4}, {"destination", 16, 4},
		{"source port", 20, 2}, {"udp checksum", 26, 2}, {"bth", 28, 12}, {"qpn", 33, 3}, {"psn", 37, 3},
		{"va", 40, 8}, {"rkey", 48, 4}, {"all", 1, 59},
	}
	rapid.Check(t, func(t *rapid.T) {
		ihl := 4 * rapid.IntRange(5, 15).Draw(t, "ihl/4")
		n := rapid.OneOf(rapid.IntRange(ihl+44, 200), rapid.IntRange(ihl+44, 4200), rapid.IntRange(ihl+44, 65531)).Draw(t, "n")
		ip := drawPacket(t, ihl, n)
		d := NewICRCDelta(ICRC(ip), n, ihl)
		for range rapid.IntRange(0, 6).Draw(t, "edits") {
			var off, size int
			if rapid.Bool().Draw(t, "field") {
				f := rapid.SampledFrom(fields).Draw(t, "which")
				off, size = f.off, f.n
				if off >= IPv4Len {
					off += ihl - IPv4Len
				}
			} else {
				off = rapid.IntRange(1, n).Draw(t, "off")
				size = rapid.IntRange(0, min(n-off, 40)).Draw(t, "size")
			}
			old := bytes.Clone(ip[off : off+size])
			repl := rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "new")
			d.Replace(off, old, repl)
			copy(ip[off:], repl)
		}
		if got, want := d.Sum(), slowICRC(ip); got != want {
			t.Fatalf("after the edits %#x, want %#x", got, want)
		}
	})
}

func TestICRCDeltaDoesNotHeal(t *testing.T) {
	ip := bytes.Clone(captured(t)[0][EthernetLen:])
	n := len(ip) - ICRCLen
	ip[100] ^= 4 // damaged on the way
	d := NewICRCDelta(binary.LittleEndian.Uint32(ip[n:]), n, IPv4Len)
	d.Replace(16, ip[16:20], []byte{10, 9, 0, 77})
	copy(ip[16:], []byte{10, 9, 0, 77})
	binary.LittleEndian.PutUint32(ip[n:], d.Sum())
	if VerifyICRC(ip) {
		t.Error("the edit made the ICRC of a damaged packet right")
	}
	if ip[100] ^= 4; !VerifyICRC(ip) {
		t.Error("the edit is wrong")
	}
}

func TestICRCDeltaRefusesBadEdits(t *testing.T) {
	for _, c := range []struct {
		off      int
		old, new []byte
	}{
		{-1, []byte{0}, []byte{0}}, {100, []byte{0}, []byte{0}}, {98, make([]byte, 3), make([]byte, 3)},
		{50, []byte{0}, nil}, {50, []byte{0}, []byte{0, 0}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Replace(%d, %d bytes, %d bytes) of a packet of 100 did not panic", c.off, len(c.old), len(c.new))
				}
			}()
			d := NewICRCDelta(0, 100, IPv4Len)
			d.Replace(c.off, c.old, c.new)
		}()
	}
}

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
