package rocev2

import (
	"bytes"
	"hash/crc32"
	"math/bits"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

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
		fs, err := (&pcapfile.Tail{Name: name}).Read()
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

// slowICRC is the definition of the ICRC put plainly: mask a copy, run CRC-32
// over eight bytes of ones and the copy.
func slowICRC(ip []byte) uint32 {
	b := bytes.Clone(ip)
	udp := int(b[0]&0xf) * 4
	for _, i := range []int{1, 8, 10, 11, udp + 6, udp + 7, udp + 8 + 4} {
		if i < len(b) {
			b[i] = 0xff
		}
	}
	return crc32.ChecksumIEEE(append(bytes.Repeat([]byte{0xff}, 8), b...))
}

// drawPacket draws a packet with the given number of IPv4 header bytes and n
// bytes in all; everything but the header length is random.
func drawPacket(t *rapid.T, ihl, n int) []byte {
	seed := rapid.Uint64().Draw(t, "seed")
	b := make([]byte, n)
	for i := range b {
		seed = seed*6364136223846793005 + 1442695040888963407
		b[i] = byte(seed >> 56)
	}
	if n > 0 {
		b[0] = 4<<4 | byte(ihl/4)
	}
	return b
}

func TestICRCSeed(t *testing.T) {
	if s := ICRCState(^crc32.ChecksumIEEE(bytes.Repeat([]byte{0xff}, 8))); s != icrcSeed {
		t.Errorf("state after eight bytes of ones is %#x, want %#x", s, icrcSeed)
	}
}

func TestICRCOfCaptures(t *testing.T) {
	for i, f := range captured(t) {
		ip := f[EthernetLen:]
		n := len(ip) - ICRCLen
		if !VerifyICRC(ip) {
			t.Errorf("frame %d: ICRC %x, computed %08x", i, ip[n:], bits.ReverseBytes32(ICRC(ip[:n])))
		}
		again := append(bytes.Clone(ip[:n]), 1, 2, 3, 4)
		if PutICRC(again); !bytes.Equal(again, ip) {
			t.Errorf("frame %d: PutICRC wrote %x, want %x", i, again[n:], ip[n:])
		}
	}
}

// Every bit of every captured packet is flipped: the ICRC must catch those that
// it covers, and no other.
func TestICRCCoverage(t *testing.T) {
	uncovered := map[int]bool{1: true, 8: true, 10: true, 11: true, 26: true, 27: true, 32: true}
	for i, f := range captured(t) {
		ip := f[EthernetLen:]
		for bit := range len(ip) * 8 {
			ip[bit/8] ^= 1 << (bit % 8)
			if got, want := VerifyICRC(ip), uncovered[bit/8]; got != want {
				t.Fatalf("frame %d, byte %d, bit %d flipped: VerifyICRC says %v, want %v", i, bit/8, bit%8, got, want)
			}
			ip[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestICRCEqualsDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ihl := 4 * rapid.IntRange(0, 15).Draw(t, "ihl/4")
		n := rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 4200)).Draw(t, "n")
		ip := drawPacket(t, ihl, n)
		if got, want := ICRC(ip), slowICRC(ip); got != want {
			t.Fatalf("ICRC of %d bytes with a header of %d = %#x, want %#x", n, ihl, got, want)
		}
	})
}

func TestICRCStateInPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(28, 4200).Draw(t, "n")
		ip := drawPacket(t, IPv4Len, n)
		rest := ip[28:]
		s := StartICRC((*[28]byte)(ip))
		cut := rapid.IntRange(0, min(len(rest), 64)).Draw(t, "headers")
		if cut < 5 { // the piece with the BTH must reach its byte 4
			cut = len(rest)
		}
		s = s.BTH(rest[:cut])
		for rest = rest[cut:]; len(rest) > 0; rest = rest[cut:] {
			cut = rapid.IntRange(1, len(rest)).Draw(t, "piece")
			s = s.Update(rest[:cut])
		}
		if got, want := s.Sum(), slowICRC(ip); got != want {
			t.Fatalf("Sum = %#x, want %#x", got, want)
		}
	})
}

func TestICRCShortPackets(t *testing.T) {
	f := captured(t)[0][EthernetLen:]
	for n := range 20 + 8 + 12 + 4 {
		ip := bytes.Clone(f[:n])
		PutICRC(ip)
		if VerifyICRC(ip) {
			t.Errorf("%d bytes, which hold no RoCEv2 packet, verify", n)
		}
	}
	ip := bytes.Clone(f[:44])
	if PutICRC(ip); !VerifyICRC(ip) {
		t.Error("44 bytes, the smallest packet, do not verify")
	}
	ip[0] = 0x44
	if PutICRC(ip); VerifyICRC(ip) {
		t.Error("a header of 16 bytes verifies")
	}
}
