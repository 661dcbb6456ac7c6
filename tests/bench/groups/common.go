package main

import (
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// percentile returns the smallest value that is not exceeded by p percent of the values.
func percentile(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return s[max(0, (len(s)*p+99)/100-1)]
}

const service = "bench"

// receivers are the receivers of h1's groups: one in its rack, two in the other.
func receivers(l *lab.Lab) (list []string) {
	for _, h := range l.Hosts[1:] {
		list = append(list, h.Addr.String())
	}
	return list
}
