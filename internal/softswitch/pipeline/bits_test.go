package pipeline

import (
	"bytes"
	"hash/crc32"
	"math/big"
	"math/rand/v2"
	"testing"
)

// layoutOf places fields of these widths.
func layoutOf(widths []int) (slots []slot, words int) {
	for _, n := range widths {
		slots = append(slots, slot{w: words, n: wordsOf(n), bits: n})
		words += wordsOf(n)
	}
	return slots, words
}

// bigOf reads big-endian bytes.
func bigOf(b []byte) *big.Int { return new(big.Int).SetBytes(b) }

// TestLoadStore cuts random bytes into random fields, compares them with big
// integers, and puts them together again in two ways.
func TestLoadStore(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 2000 {
		var widths []int
		total := 0
		for range 1 + r.IntN(12) {
			n := 1 + r.IntN([]int{8, 16, 64, 200}[r.IntN(4)])
			widths = append(widths, n)
			total += n
		}
		if pad := -total & 7; pad > 0 {
			widths = append(widths, pad)
			total += pad
		}
		frame := make([]byte, total/8+slack)
		for i := range total / 8 {
			frame[i] = byte(r.Uint32())
		}
		whole := bigOf(frame[:total/8])
		slots, words := layoutOf(widths)
		ws, bits := windowsOf(slots)
		if bits != total {
			t.Fatalf("%v: %d bits, want %d", widths, bits, total)
		}
		w := make([]uint64, words)
		load(ws, w, frame)
		at := 0
		for _, s := range slots {
			at += s.bits
			want := new(big.Int).Rsh(whole, uint(total-at))
			words := make([]uint64, s.n)
			bigWords(want, words)
			words[0] &= maskOf(topBits(s.bits))
			for i := range words {
				if w[s.w+i] != words[i] {
					t.Fatalf("round %d, widths %v: field of %d bits is %#x, want %#x", round, widths, s.bits, w[s.w+i], words[i])
				}
			}
			if s.bits <= 64 {
				if got := peek(frame, at-s.bits, s.bits); got != w[s.w] {
					t.Fatalf("peek(%d, %d) = %#x, want %#x", at-s.bits, s.bits, got, w[s.w])
				}
			}
		}
		cs, bits := chunksOf(itemsOf(slots))
		out := make([]byte, bits/8+slack)
		if n := store(cs, w, out); !bytes.Equal(out[:n], frame[:total/8]) {
			t.Fatalf("widths %v: stored %x, want %x", widths, out[:n], frame[:total/8])
		}
		var bw bitWriter
		for _, it := range itemsOf(slots) {
			bw.put(w[it.w], it.bits)
		}
		if !bytes.Equal(bw.b, frame[:total/8]) {
			t.Fatalf("widths %v: written %x, want %x", widths, bw.b, frame[:total/8])
		}
	}
}

func TestPutBytes(t *testing.T) {
	for shift := range 8 {
		bw := bitWriter{}
		bw.put(0x55, shift)
		bw.putBytes([]byte{0xde, 0xad, 0xbe, 0xef})
		got := new(big.Int).Rsh(bigOf(bw.b), uint(-bw.bits&7))
		want := new(big.Int).SetUint64(0x55&maskOf(shift)<<32 | 0xdeadbeef)
		if bw.bits != 32+shift || got.Cmp(want) != 0 {
			t.Errorf("behind %d bits: %d bits %x, want %x", shift, bw.bits, got, want)
		}
	}
}

// TestAlgorithms compares with published checksums and slower implementations.
func TestAlgorithms(t *testing.T) {
	check := []byte("123456789")
	if got := crc16(check); got != 0xbb3d {
		t.Errorf("CRC-16/ARC of the check string is %#x", got)
	}
	if got := crc32.ChecksumIEEE(check); got != 0xcbf43926 {
		t.Errorf("CRC-32 of the check string is %#x", got)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 70 {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32() | uint32(n%3)*0x7f) // many ones, for carries
		}
		padded := append(bytes.Clone(b), 0)
		xor := uint64(0)
		for i := 0; i+1 < len(padded); i += 2 {
			xor ^= uint64(padded[i])<<8 | uint64(padded[i+1])
		}
		if got := xor16(b); got != xor {
			t.Errorf("xor16(%x) = %#x, want %#x", b, got, xor)
		}
		if got, want := identity(b), bigOf(b[:min(n, 8)]).Uint64(); got != want {
			t.Errorf("identity(%x) = %#x, want %#x", b, got, want)
		}
	}
}
