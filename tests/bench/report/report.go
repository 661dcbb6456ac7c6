// Package report has what benchmarks print in the same way: the machine's load, medians, and whether a goal is reached.
package report

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Load is the machine's load of the last minute, as text.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	text, _, _ := strings.Cut(string(b), " ")
	return text
}

// Median is that of some numbers, of which there is one at least.
func Median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

// Verdict says whether a figure is where it should be: at least the goal if more is true, else at most.
func Verdict(what string, got, goal float64, unit string, more bool) string {
	word, sign := "reached", "at most"
	if more {
		sign = "at least"
	}
	if more && got < goal || !more && got > goal {
		word = "MISSED"
	}
	return fmt.Sprintf("%s: %.4g%s; goal: %s %.4g%s: %s", what, got, unit, sign, goal, unit, word)
}
