package p4rtserver

import (
	"fmt"
	"math/bits"
)

// words returns how many 64-bit words a value of that many bits takes.
func words(width int) int { return (width + 63) / 64 }

// parseBits writes a byte string's value into dst, words(width) words long and
// zero, most significant word first. Leading zero bytes beyond the width are
// accepted ("Bytestrings"). The error says what is wrong with the value; the
// caller adds whose value it is.
func parseBits(dst []uint64, b []byte, width int, holder string) error {
	if len(b) == 0 {
		return fmt.Errorf("the value is empty; zero is written as \\x00")
	}
	all := b
	for len(b) > 1 && b[0] == 0 {
		b = b[1:]
	}
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

// hex writes a byte string for messages; a very long one is cut short.
func hex(b []byte) string {
	const most = 32
	if len(b) > most {
		return fmt.Sprintf("0x%x… (%d bytes)", b[:most], len(b))
	}
	return fmt.Sprintf("0x%x", b)
}

// parseSigned is parseBits for int<width> in two's complement: the value is
// sign-extended or cut to the width.
func parseSigned(dst []uint64, b []byte, width int, holder string) error {
	if len(b) == 0 {
		return fmt.Errorf("the value is empty; zero is written as \\x00")
	}
	all := b
	negative := b[0]&0x80 != 0
	fill := byte(0)
	if negative {
		fill = 0xff
	}
	for len(b) > 1 && b[0] == fill && (b[1]&0x80 != 0) == negative {
		b = b[1:]
	}
	need := (len(b)-1)*8 + bits.Len8(b[0]^fill) + 1
	if need > width {
		return fmt.Errorf("value %s needs %d bits, the %s has %d", hex(all), need, holder, width)
	}
	for i := range dst {
		dst[i] = 0
		if negative {
			dst[i] = ^uint64(0)
		}
	}
	for i := range b {
		word, shift := len(dst)-1-i/8, i%8*8
		if word < 0 { // a byte of nothing but sign bits
			break
		}
		dst[word] = dst[word]&^(0xff<<shift) | uint64(b[len(b)-1-i])<<shift
	}
	if r := width % 64; r != 0 && len(dst) > 0 {
		dst[0] &= 1<<r - 1
	}
	return nil
}

// signedBytes is toBytes for int<width>.
func signedBytes(v []uint64, width int) []byte {
	if width == 0 || len(v) == 0 {
		return []byte{0}
	}
	top := (width - 1) % 64
	negative := v[0]>>top&1 != 0
	fill := byte(0)
	b := make([]byte, 0, len(v)*8)
	for i, w := range v {
		if i == 0 && negative {
			w |= ^uint64(0) << top
		}
		for shift := 56; shift >= 0; shift -= 8 {
			b = append(b, byte(w>>shift))
		}
	}
	if negative {
		fill = 0xff
	}
	for len(b) > 1 && b[0] == fill && (b[1]&0x80 != 0) == negative {
		b = b[1:]
	}
	return b
}
