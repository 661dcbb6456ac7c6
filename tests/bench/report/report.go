// Package report has what benchmarks measure and print in the same way: the machine and its load,
// processor time, medians, and whether a goal is reached.
package report

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Load is the machine's load average of the last minute, as text.
func Load() string { return FirstWord("/proc/loadavg") }

// Kernel is the version of Linux, as text.
func Kernel() string { return FirstWord("/proc/sys/kernel/osrelease") }

// FirstWord returns the first word of a file; "unknown" if there is no file.
func FirstWord(name string) string {
	b, _ := os.ReadFile(name)
	return strings.Fields(string(b) + " unknown")[0]
}

// Median returns the median of some numbers; 0 if there are none.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

// MedianOf returns the median of f of each element.
func MedianOf[T any](list []T, f func(T) float64) float64 {
	var v []float64
	for _, x := range list {
		v = append(v, f(x))
	}
	return Median(v)
}

// Verdict says whether a figure reaches its goal: at least the goal if more is true, otherwise at
// most.
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
