package match

import (
	"bytes"
	"errors"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// TestValueOfBig: FromBig, Big, Bytes and FromBytes agree with math/big at all
// widths.
func TestValueOfBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(0, 300).Draw(t, "bits")
		b := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bytes")
		x := new(big.Int).SetBytes(b)
		if rapid.Bool().Draw(t, "negative") {
			x.Neg(x)
		}
		mod := new(big.Int).Lsh(big.NewInt(1), uint(bits))
		want := new(big.Int).Mod(x, mod)
		v := FromBig(x, bits)
		if !v.Fits(bits) {
			t.Fatalf("FromBig(%v, %d) = %v does not fit", x, bits, []uint64(v))
		}
		if v.Big().Cmp(want) != 0 {
			t.Fatalf("FromBig(%v, %d) = %v, want %v", x, bits, v, want)
		}
		canon := want.Bytes()
		if len(canon) == 0 {
			canon = []byte{0}
		}
		if !bytes.Equal(v.Bytes(), canon) {
			t.Fatalf("Bytes of %v are %x, want %x", want, v.Bytes(), canon)
		}
		padded := append(make([]byte, rapid.IntRange(0, 9).Draw(t, "padding")), canon...)
		if back, err := FromBytes(padded, bits); err != nil || !back.Equal(v) {
			t.Fatalf("FromBytes(%x, %d) = %v, %v, want %v", padded, bits, back, err, v)
		}
		if want.IsUint64() && v.Uint() != want.Uint64() {
			t.Fatalf("Uint of %v is %d", want, v.Uint())
		}
		if u := FromUint(v.Uint(), min(bits, 64)); bits <= 64 && !u.Equal(v) {
			t.Fatalf("FromUint(%#x, %d) = %v", v.Uint(), bits, u)
		}
	})
}

func TestFromBytesErrors(t *testing.T) {
	for _, c := range []struct {
		b    []byte
		bits int
		want error
	}{
		{nil, 8, ErrEmpty},
		{[]byte{}, 0, ErrEmpty},
		{[]byte{0}, 0, nil},
		{[]byte{1}, 0, ErrRange},
		{[]byte{0xff}, 8, nil},
		{[]byte{0x01, 0x00}, 8, ErrRange},
		{[]byte{0x00, 0x00, 0x00, 0xff}, 8, nil},
		{[]byte{0x02, 0x00}, 9, ErrRange},
		{[]byte{0x01, 0xff}, 9, nil},
		{[]byte{1, 0, 0, 0, 0, 0, 0, 0, 0}, 64, ErrRange},
		{[]byte{1, 0, 0, 0, 0, 0, 0, 0, 0}, 65, nil},
		{[]byte{2, 0, 0, 0, 0, 0, 0, 0, 0}, 65, ErrRange},
	} {
		if _, err := FromBytes(c.b, c.bits); !errors.Is(err, c.want) {
			t.Errorf("FromBytes(%x, %d): %v, want %v", c.b, c.bits, err, c.want)
		}
	}
}

// FuzzFromBytes: whatever the bytes, a Value is the number they are, or there is
// an error for a reason.
func FuzzFromBytes(f *testing.F) {
	f.Add([]byte{0, 1, 2}, uint16(9))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, 255}, uint16(72))
	f.Fuzz(func(t *testing.T, b []byte, width uint16) {
		bits := int(width % 2048)
		x := new(big.Int).SetBytes(b)
		v, err := FromBytes(b, bits)
		if ok := len(b) > 0 && x.BitLen() <= bits; ok != (err == nil) {
			t.Fatalf("FromBytes(%x, %d): %v", b, bits, err)
		}
		if err == nil && (!v.Fits(bits) || v.Big().Cmp(x) != 0) {
			t.Fatalf("FromBytes(%x, %d) = %v", b, bits, v)
		}
	})
}
