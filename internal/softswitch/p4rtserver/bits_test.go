package p4rtserver

import (
	"math/big"
	"testing"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"pgregory.net/rapid"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
)

// The examples of the specification's section on byte strings.
func TestByteStrings(t *testing.T) {
	for _, c := range []struct {
		bits   int
		signed bool
		in     string
		out    string // canonical; empty: refused
	}{
		{8, false, "\x63", "\x63"},
		{16, false, "\x00\x63", "\x63"},
		{16, false, "\x63", "\x63"},
		{16, false, "\x30\x64", "\x30\x64"},
		{16, false, "\x00\x30\x64", "\x30\x64"},
		{12, false, "\x00\x63", "\x63"},
		{12, false, "\x00\x00\x63", "\x63"},
		{8, true, "\x63", "\x63"},
		{8, true, "\x9d", "\x9d"},
		{8, true, "\xff\x9d", "\x9d"},
		{12, true, "\xfd\x1d", "\xfd\x1d"},
		{16, true, "\x00\x00", "\x00"},
		{16, true, "\x00", "\x00"},
		{8, false, "\x01\x63", ""},
		{8, false, "", ""},
		{16, false, "\x01\x00\x63", ""},
		{12, false, "\x10\x63", ""},
		{12, false, "\x01\x00\x63", ""},
		{12, false, "\x00\x40\x63", ""},
		{8, true, "\x00\x9d", ""},
		{12, true, "\x8d\x1d", ""},
		{16, true, "", ""},
	} {
		kind := dataBits
		if c.signed {
			kind = dataSigned
		}
		typ := &dataType{kind: kind, bits: c.bits}
		v, err := typ.decode(nil, &p4.P4Data{Data: &p4.P4Data_Bitstring{Bitstring: []byte(c.in)}})
		if (err != nil) != (c.out == "") {
			t.Errorf("%+q in %d bits: %v", c.in, c.bits, err)
		}
		if err == nil {
			if d, _ := typ.encode(v); string(d.GetBitstring()) != c.out {
				t.Errorf("%+q in %d bits: %+q, want %+q", c.in, c.bits, d.GetBitstring(), c.out)
			}
		}
	}
}

// Against math/big.
func TestBitsProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(1, 200).Draw(t, "bits")
		b := rapid.SliceOfN(rapid.Byte(), 1, 30).Draw(t, "bytes")
		n := new(big.Int).SetBytes(b)
		v := make(match.Value, match.Words(bits))
		if err := parseBits(v, b, bits, "field"); (err == nil) != (n.BitLen() <= bits) {
			t.Fatalf("%x in %d bits: %v", b, bits, err)
		} else if err == nil && v.Big().Cmp(n) != 0 {
			t.Fatalf("%x in %d bits: %v", b, bits, v)
		}
		// Signed: the value of b in two's complement.
		if b[0]&0x80 != 0 {
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
		half := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
		fits := n.Cmp(half) < 0 && n.Cmp(new(big.Int).Neg(half)) >= 0
		v, err := parseSigned(b, bits, "field")
		if (err == nil) != fits {
			t.Fatalf("%x in int<%d>: %v", b, bits, err)
		} else if err != nil {
			return
		}
		if !v.Equal(match.FromBig(n, bits)) {
			t.Fatalf("%x in int<%d>: %v, want %v", b, bits, v, match.FromBig(n, bits))
		}
		out := signedBytes(v, bits)
		if w, err := parseSigned(out, bits, "field"); err != nil || !w.Equal(v) || len(out) > len(b) {
			t.Fatalf("%x in int<%d>: back as %x: %v", b, bits, out, err)
		}
	})
}

// What is put at any bit is found there again.
func TestPutAndGetBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at, n := rapid.IntRange(0, 20).Draw(t, "at"), rapid.IntRange(1, 200).Draw(t, "bits")
		v := make(match.Value, match.Words(n))
		for i := range v {
			v[i] = rapid.Uint64().Draw(t, "word")
		}
		if r := n % 64; r != 0 {
			v[0] &= 1<<r - 1
		}
		b := make([]byte, (at+n+7)/8)
		putBits(b, at, n, v)
		if got := getBits(b, at, n); string(got) != string(v.Bytes()) {
			t.Fatalf("%x, want %x", got, v.Bytes())
		}
		if at > 0 && new(big.Int).SetBytes(getBits(b, 0, at)).Sign() != 0 {
			t.Fatal("bits before have changed")
		}
	})
}
