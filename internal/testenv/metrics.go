package testenv

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var metricName = regexp.MustCompile(`fqName: "(\w+)"`)

// MetricNames compares the names of metrics, as a registry of Prometheus describes them, with
// those in a file: one in a line, in order.
func MetricNames[D fmt.Stringer](t testing.TB, file string, describe func(chan<- D)) {
	t.Helper()
	descriptions := make(chan D)
	go func() { defer close(descriptions); describe(descriptions) }()
	var names []string
	for d := range descriptions {
		m := metricName.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("a metric without a name: %v", d)
		}
		names = append(names, m[1])
	}
	slices.Sort(names)
	got := strings.Join(slices.Compact(names), "\n") + "\n"
	if want, err := os.ReadFile(file); err != nil || string(want) != got {
		t.Errorf("%s does not have the metrics that there are (%v); they are:\n%s", file, err, got)
	}
}
