package rocev2

// The arithmetic below treats a 32-bit CRC register as a polynomial over GF(2)
// modulo the CRC-32 polynomial P, in the reflected order that the wire uses:
// bit 31 is the coefficient of x^0, bit 0 that of x^31. Feeding a byte b to the
// register c without the customary inversions gives (c + b)·x^8 mod P, with b
// in the low eight bits of c; so n zero bytes multiply it by x^(8n).

// poly is P without its x^32.
const poly = 0xedb88320

// crcTable[k][b] is b·x^(8(k+1)): the effect of byte b with k bytes after it. It allows feeding
// several bytes at once.
var crcTable = func() (t [8][256]uint32) {
	for b := range t[0] {
		c := uint32(b)
		for range 8 {
			c = timesX(c)
		}
		t[0][b] = c
	}
	for k := 1; k < len(t); k++ {
		for b := range t[k] {
			c := t[k-1][b]
			t[k][b] = c>>8 ^ t[0][c&0xff]
		}
	}
	return t
}()

// xPower[d][v] is x^(8·v·256^d): by the base-256 digits of n, x^(8n) is a
// product of at most four of them.
var xPower = func() (t [4][256]uint32) {
	step := uint32(1 << (31 - 8)) // x^8
	for d := range t {
		c := uint32(1 << 31) // x^0
		for v := range t[d] {
			t[d][v] = c
			c = mul(c, step)
		}
		step = c
	}
	return t
}()

// timesX4[v] is the remainder for the four bits v that a multiplication by x^4 shifts out.
var timesX4 = func() (t [16]uint32) {
	for v := range t {
		c := uint32(v)
		for range 4 {
			c = timesX(c)
		}
		t[v] = c
	}
	return t
}()

// timesX returns c·x mod P.
func timesX(c uint32) uint32 { return c>>1 ^ poly&-(c&1) }

// mul returns a·b mod P by Horner's rule over the hexadecimal digits of a.
func mul(a, b uint32) uint32 {
	var t [16]uint32 // t[v] = v·b, v read as four coefficients, x^0 highest
	t[8] = b
	t[4] = timesX(t[8])
	t[2] = timesX(t[4])
	t[1] = timesX(t[2])
	for v := 3; v < 16; v++ {
		t[v] = t[v&(v-1)] ^ t[v&-v]
	}
	var c uint32
	for range 8 {
		c = c>>4 ^ timesX4[c&0xf] ^ t[a&0xf]
		a >>= 4
	}
	return c
}

// shift returns c·x^(8n) mod P: the register after n zero bytes. The order of x
// is 2^32−1, so n counts modulo that, and shift(c, ^n) undoes shift(c, n).
func shift(c, n uint32) uint32 {
	for d := 0; n != 0; d++ {
		if v := n & 0xff; v != 0 {
			c = mul(c, xPower[d][v])
		}
		n >>= 8
	}
	return c
}

// feed1, feed4 and feed8 feed the register one, four or eight bytes, the first
// of them in the low bits.
func feed1(c uint32, b byte) uint32 { return c>>8 ^ crcTable[0][byte(c)^b] }

func feed4(c, w uint32) uint32 {
	c ^= w
	return crcTable[3][c&0xff] ^ crcTable[2][c>>8&0xff] ^ crcTable[1][c>>16&0xff] ^ crcTable[0][c>>24]
}

func feed8(c uint32, w uint64) uint32 {
	c ^= uint32(w)
	h := uint32(w >> 32)
	return crcTable[7][c&0xff] ^ crcTable[6][c>>8&0xff] ^ crcTable[5][c>>16&0xff] ^ crcTable[4][c>>24] ^
		crcTable[3][h&0xff] ^ crcTable[2][h>>8&0xff] ^ crcTable[1][h>>16&0xff] ^ crcTable[0][h>>24]
}
