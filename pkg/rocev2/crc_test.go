package rocev2

import (
	"testing"

	"pgregory.net/rapid"
)

func TestMul(t *testing.T) {
	slow := func(a, b uint32) (c uint32) {
		for ; a != 0; a <<= 1 {
			if a>>31 == 1 {
				c ^= b
			}
			b = timesX(b)
		}
		return c
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint32().Draw(t, "a"), rapid.Uint32().Draw(t, "b")
		if got, want := mul(a, b), slow(a, b); got != want {
			t.Fatalf("mul(%#x, %#x) = %#x, want %#x", a, b, got, want)
		}
		n := rapid.Uint32().Draw(t, "n")
		if got := shift(shift(a, n), ^n); got != a {
			t.Fatalf("shift by %#x and back made %#x of %#x", n, got, a)
		}
	})
	c := uint32(0x12345678)
	for n := range uint32(70000) {
		if got := shift(0x12345678, n); got != c {
			t.Fatalf("shift by %d = %#x, want %#x", n, got, c)
		}
		c = feed1(c, 0)
	}
}
