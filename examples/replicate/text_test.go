package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestTexts(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 64 << 20: "64 MiB", 3 << 30: "3 GiB",
		1<<20 + 1: "1.0 MiB", 5 << 50: "5120 TiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
	for want, names := range map[string][]string{"": nil, "h2": {"h2"}, "h2 and h3": {"h2", "h3"}, "h2, h3 and h4": {"h2", "h3", "h4"}} {
		if got := list(names); got != want {
			t.Errorf("%v: %q", names, got)
		}
	}
	if got := rateText(125_000_000, time.Second); got != "1.00 Gb/s" {
		t.Error(got)
	}
}

// TestCount: the uplink is the sender's, the sum is that of all hosts, and earlier
// bytes do not count.
func TestCount(t *testing.T) {
	r := wayResult{Seconds: 2, Writes: 10, Posts: 10, Completions: 5}
	r.count(map[string]uint64{"h1": 100, "h2": 7}, map[string]uint64{"h1": 1100, "h2": 507}, 500)
	if r.Uplink != 1000 || r.Hosts != 1500 || r.UplinkTimes != 2 || r.HostsTimes != 3 || r.Goodput != 2e-6 {
		t.Errorf("%+v", r)
	}
	table := (&results{Ways: []wayResult{r}}).table()
	for _, want := range []string{"1000 B", "2.00", "1.5 KiB", "3.00", "1.00", "0.50"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
}

// TestBar: elsewhere than on a terminal a bar is four lines, and on one it is drawn
// anew after other lines.
func TestBar(t *testing.T) {
	show := func(terminal bool) string {
		var out strings.Builder
		b := newBar(os.Stderr, 8)
		b.terminal, b.w = terminal, &out
		for i := range 8 {
			if i == 5 {
				b.line("something else")
			}
			b.last = time.Time{}
			b.add(1)
		}
		b.end()
		b.end()
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
	var none *bar
	none.add(1)
	none.end()
}
