package cli

import (
	"strings"
	"testing"
)

// TestUnavailable: why there is no connection to a daemon, and what to do.
func TestUnavailable(t *testing.T) {
	for said, want := range map[string]string{
		"dial unix /x: connect: permission denied":            "be root",
		"dial unix /x: connect: protocol wrong type for sock": "that is not a unix socket",
		"dial unix /x: connect: invalid argument":             "at most 107 bytes",
		"error reading server preface: EOF":                   "hung up",
		"something else":                                      "cannot be reached: something else",
	} {
		if got := unavailable(said); !strings.Contains(got, want) {
			t.Errorf("%q: %s", said, got)
		}
	}
}
