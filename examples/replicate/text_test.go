package main

import (
	"strings"
	"testing"
)

func TestTexts(t *testing.T) {
	for want, names := range map[string][]string{"": nil, "h2": {"h2"}, "h2 and h3": {"h2", "h3"}, "h2, h3 and h4": {"h2", "h3", "h4"}} {
		if got := list(names); got != want {
			t.Errorf("%v: %q", names, got)
		}
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
