package match

import (
	"bytes"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// TestValueOfBig: FromBig, Big and Bytes agree with math/big at all
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
		if want.IsUint64() && v.Uint() != want.Uint64() {
			t.Fatalf("Uint of %v is %d", want, v.Uint())
		}
	})
}
