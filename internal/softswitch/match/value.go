package match

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"math/bits"
	"slices"
)

// Value is a bit string whose width is stored elsewhere: [Words](bits) words, most significant
// first, with zeros above the width.
type Value []uint64

// Words returns the number of 64-bit words of a Value of that many bits.
func Words(bits int) int { return (bits + 63) / 64 }

// FromBig returns x modulo 2^bits, so that a negative number becomes its two's
// complement. A nil x is 0.
func FromBig(x *big.Int, bits int) Value {
	v := make(Value, Words(bits))
	if x == nil || len(v) == 0 {
		return v
	}
	if x.Sign() < 0 || x.BitLen() > bits {
		mod := new(big.Int).Lsh(big.NewInt(1), uint(bits))
		x = mod.Mod(x, mod)
	}
	buf := make([]byte, 8*len(v))
	x.FillBytes(buf)
	for i := range v {
		v[i] = binary.BigEndian.Uint64(buf[8*i:])
	}
	return v
}

// Big returns v as a number.
func (v Value) Big() *big.Int { return new(big.Int).SetBytes(v.Bytes()) }

// Bytes returns v in P4Runtime's canonical form: big-endian, as short as
// possible, at least one byte.
func (v Value) Bytes() []byte {
	n := max((v.bitLen()+7)/8, 1)
	b := make([]byte, n)
	for i := range b {
		at := n - 1 - i
		if w := len(v) - 1 - at/8; w >= 0 {
			b[i] = byte(v[w] >> (8 * (at % 8)))
		}
	}
	return b
}

// Uint returns the low 64 bits of v.
func (v Value) Uint() uint64 {
	if len(v) == 0 {
		return 0
	}
	return v[len(v)-1]
}

// Equal reports whether v and w are the same words.
func (v Value) Equal(w Value) bool { return slices.Equal(v, w) }

// String returns v in hexadecimal, as 0x0a.
func (v Value) String() string { return fmt.Sprintf("0x%x", v.Bytes()) }

// bitLen returns the number of bits up to the highest one set.
func (v Value) bitLen() int {
	for i, w := range v {
		if w != 0 {
			return 64*(len(v)-1-i) + bits.Len64(w)
		}
	}
	return 0
}

// Fits reports whether v is a valid Value of that many bits: with the right number of words, and
// zeros above the width.
func (v Value) Fits(bits int) bool {
	return len(v) == Words(bits) && (len(v) == 0 || v[0]&^topMask(bits) == 0)
}

// topMask returns a mask of the used bits of a value's first word.
func topMask(bits int) uint64 {
	if n := bits % 64; n != 0 {
		return 1<<n - 1
	}
	return ^uint64(0)
}

// IsZero reports whether v is 0.
func (v Value) IsZero() bool { return v.bitLen() == 0 }

// Ones returns the largest Value of that many bits.
func Ones(bits int) Value {
	v := make(Value, Words(bits))
	fillPrefix(v, bits, bits)
	return v
}

// fillPrefix writes the mask of the first n of that many bits.
func fillPrefix(to []uint64, n, bits int) {
	for i := range to {
		to[i] = prefixWord(i, n, bits)
	}
}

// prefixWord returns word i of a mask of the first n of that many bits.
func prefixWord(i, n, bits int) uint64 {
	m := ^uint64(0)
	if i == 0 {
		m = topMask(bits)
	}
	low := 64 * (Words(bits) - 1 - i) // bits of lower words
	switch clear := bits - n - low; { // bits of this word and lower ones outside the prefix
	case clear >= 64:
		return 0
	case clear > 0:
		return m &^ (1<<clear - 1)
	}
	return m
}
