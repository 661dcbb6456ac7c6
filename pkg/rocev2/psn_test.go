package rocev2

import (
	"testing"

	"pgregory.net/rapid"
)

func TestPSN(t *testing.T) {
	any24 := rapid.OneOf(rapid.Uint32Range(0, Mask24), rapid.Uint32Range(0, 4), rapid.Uint32Range(Mask24-4, Mask24),
		rapid.Uint32Range(1<<23-4, 1<<23+4))
	rapid.Check(t, func(t *rapid.T) {
		p, q := PSN(any24.Draw(t, "p")), PSN(any24.Draw(t, "q"))
		d := p.Sub(q)
		if d < -1<<23 || d >= 1<<23 || (d-(int(p)-int(q)))%(1<<24) != 0 {
			t.Fatalf("%#x − %#x = %d", p, q, d)
		}
		if got := q.Add(d); got != p {
			t.Fatalf("%#x + (%#x − itself) = %#x", q, p, got)
		}
		n := rapid.IntRange(-1<<40, 1<<40).Draw(t, "n")
		if got := p.Add(n); got > Mask24 || (int(got)-int(p)-n)%(1<<24) != 0 {
			t.Fatalf("%#x + %d = %#x", p, n, got)
		}
		if p.Before(q) != (d < 0) || p.After(q) != q.Before(p) {
			t.Fatalf("%#x, %#x: before %v, after %v, distance %d", p, q, p.Before(q), p.After(q), d)
		}
		if d != -1<<23 && (q.Sub(p) != -d || p.Before(q) && p.After(q)) {
			t.Fatalf("%#x, %#x: distances %d and %d", p, q, d, q.Sub(p))
		}
		if k := rapid.IntRange(1, 1<<23-1).Draw(t, "k"); !p.Before(p.Add(k)) || !p.After(p.Add(-k)) {
			t.Fatalf("%#x is not before itself + %d", p, k)
		}
	})
	for _, c := range []struct {
		p, q PSN
		want int
	}{{0, 0, 0}, {0, 0xffffff, 1}, {0xffffff, 0, -1}, {2, 0xfffffe, 4}, {0x800000, 0, -1 << 23}, {0, 0x800000, -1 << 23},
		{0x7fffff, 0, 0x7fffff}} {
		if got := c.p.Sub(c.q); got != c.want {
			t.Errorf("%#x − %#x = %d, want %d", c.p, c.q, got, c.want)
		}
	}
	if p := PSN(0xffffff).Add(1); p != 0 {
		t.Errorf("0xffffff + 1 = %#x", p)
	}
}
