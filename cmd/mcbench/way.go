package main

import (
	"strings"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// A way is a way to replicate a write to several hosts. All use the same calls of the library.
type way struct {
	name      string
	words     string
	mode      mcrdma.Mode
	algorithm string
	path      mcrdma.Path // the path that its groups must have
}

var ways = []way{
	{"multicast", "switches copy", mcrdma.ModeRequire, "", mcrdma.PathSwitch},
	{"fan-out", "the sender sends to each", mcrdma.ModeOff, "sequential", mcrdma.PathRelay},
	{"chain", "each host relays to the next", mcrdma.ModeOff, "chain", mcrdma.PathRelay},
	{"rdmc", "hosts relay, binomial pipeline", mcrdma.ModeOff, "binomial-pipeline", mcrdma.PathRelay},
}

func wayNames() (names []string) {
	for _, w := range ways {
		names = append(names, w.name)
	}
	return names
}

// wayOf finds a way. Errors are usage errors.
func wayOf(name string) (way, error) {
	for _, w := range ways {
		if w.name == strings.ToLower(name) {
			return w, nil
		}
	}
	return way{}, cli.Usagef("no way %q; the ways are: %s", name, strings.Join(wayNames(), ", "))
}
