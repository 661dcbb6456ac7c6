package p4rtserver

import (
	"fmt"
	"math/big"
	"math/bits"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
)

// parseBits writes a byte string's value into dst, which has match.Words(width) words and is zero,
// most significant word first. It accepts leading zero bytes beyond the width ("Bytestrings"). The
// error describes the fault; the caller adds the context.
func parseBits(dst []uint64, b []byte, width int, holder string) error {
	if len(b) == 0 {
		return fmt.Errorf("the value is empty; zero is written as \\x00")
	}
	all := b
	b = canonical(b)
	if need := (len(b)-1)*8 + bits.Len8(b[0]); need > width {
		return fmt.Errorf("value %s needs %d bits, the %s has %d", hex(all), need, holder, width)
	}
	if width == 0 {
		return nil
	}
	for i := range b {
		shift := i * 8
		dst[len(dst)-1-shift/64] |= uint64(b[len(b)-1-i]) << (shift % 64)
	}
	return nil
}

// canonical removes leading zero bytes.
func canonical(b []byte) []byte {
	for len(b) > 1 && b[0] == 0 {
		b = b[1:]
	}
	return b
}

// hex formats a byte string for messages; it truncates a very long one.
func hex(b []byte) string {
	const most = 32
	if len(b) > most {
		return fmt.Sprintf("0x%x… (%d bytes)", b[:most], len(b))
	}
	return fmt.Sprintf("0x%x", b)
}

// parseSigned parses int<width> in two's complement: the value is sign-extended or truncated to the
// width.
func parseSigned(b []byte, width int, holder string) (match.Value, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("the value is empty; zero is written as \\x00")
	}
	x := new(big.Int).SetBytes(b)
	if b[0]&0x80 != 0 {
		x.Sub(x, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	if need := signedBits(x); need > width {
		return nil, fmt.Errorf("value %s needs %d bits, the %s has %d", hex(b), need, holder, width)
	}
	return match.FromBig(x, width), nil
}

// signedBits returns how many bits a number needs, including its sign.
func signedBits(x *big.Int) int {
	if x.Sign() < 0 {
		x = new(big.Int).Not(x)
	}
	return x.BitLen() + 1
}

// signedBytes formats int<width> for parseSigned, in as few bytes as possible.
func signedBytes(v match.Value, width int) []byte {
	x := v.Big()
	if width > 0 && x.Bit(width-1) != 0 {
		x.Sub(x, new(big.Int).Lsh(big.NewInt(1), uint(width)))
	}
	n := (signedBits(x) + 7) / 8
	return x.And(x, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(8*n)), big.NewInt(1))).FillBytes(make([]byte, n))
}
