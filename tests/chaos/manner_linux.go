package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// A manner is how to carry out plans.
type manner struct {
	liar     bool // the switch of the senders acknowledges what no member has; see liar_linux.go
	fastPath bool // the switches forward most packets in the kernel
}

// spec is the specification of their labs.
func (m manner) spec(s lab.Spec) lab.Spec {
	if s.FastPath = m.fastPath; s.FastPath {
		s.MTU = 2200 // longer frames do not fit in a page
	}
	return s
}

// inKernel is the number of packets that the switches' kernels have copied since the last start of
// the switches.
func inKernel(ctx context.Context, l *lab.Lab) (copied uint64, err error) {
	for _, n := range l.Switches {
		status, counts, err := n.Kernel(ctx)
		if err != nil {
			return copied, err
		}
		// After an agent has cleared its switch, packets to hosts of the same rack are flooded,
		// which the kernel part cannot do.
		if !strings.HasPrefix(status, "xdp") && !strings.Contains(status, "that the bridge does not know") {
			return copied, fmt.Errorf("%s is %s", n.Name, status)
		}
		copied += counts["Requests"]
	}
	return copied, nil
}
