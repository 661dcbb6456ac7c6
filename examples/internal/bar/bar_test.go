package bar

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestTexts(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 64 << 20: "64 MiB", 3 << 30: "3 GiB",
		1<<20 + 1: "1.0 MiB", 5 << 50: "5120 TiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
	if got := Rate(125_000_000, time.Second); got != "1.00 Gb/s" {
		t.Error(got)
	}
}

// TestBar: elsewhere than on a terminal a bar is four lines, and on one it is drawn
// anew after other lines.
func TestBar(t *testing.T) {
	show := func(terminal bool) string {
		var out strings.Builder
		b := New(os.Stderr, 8)
		b.terminal, b.w = terminal, &out
		for i := range 8 {
			if i == 5 {
				b.Line("something else")
			}
			b.last = time.Time{}
			b.Add(1)
		}
		b.End()
		b.End()
		return out.String()
	}
	plain := show(false)
	if strings.Count(plain, "\n") != 5 || !strings.Contains(plain, "   100 % of 8 B") || !strings.Contains(plain, "\nsomething else\n") {
		t.Errorf("plain: %q", plain)
	}
	fancy := show(true)
	if strings.Count(fancy, "\n") != 2 || !strings.Contains(fancy, "\r\x1b[Ksomething else\n") || !strings.HasSuffix(fancy, "\n") ||
		!strings.Contains(fancy, "["+strings.Repeat("=", 20)+strings.Repeat(" ", 20)+"]  50 %") {
		t.Errorf("terminal: %q", fancy)
	}
	var none *Bar
	none.Add(1)
	none.Total(1)
	none.Text("")
	none.End()
}
