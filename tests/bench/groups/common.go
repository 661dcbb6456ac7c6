package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// percentile is the least value that p of a hundred do not exceed.
func percentile(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return s[max(0, (len(s)*p+99)/100-1)]
}

// verdict says whether a figure is where it should be.
func verdict(what string, got, goal float64, unit string, more bool) string {
	word, sign := "reached", "at most"
	if more {
		sign = "at least"
	}
	if more && got < goal || !more && got > goal {
		word = "MISSED"
	}
	return fmt.Sprintf("%s: %.3g %s; goal: %s %.3g %s: %s", what, got, unit, sign, goal, unit, word)
}

func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	text, _, _ := strings.Cut(string(b), " ")
	return text
}

const service = "bench"

// receivers are those of h1's groups: one in its rack, two in the other.
func receivers(l *lab.Lab) (list []string) {
	for _, h := range l.Hosts[1:] {
		list = append(list, h.Addr.String())
	}
	return list
}
