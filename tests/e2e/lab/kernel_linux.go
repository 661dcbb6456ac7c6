package lab

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

var kernelLine = regexp.MustCompile(`fast_path="((?:[^"\\]|\\.)*)" kernel=(?:"map\[([^"\]]*)\]"|map\[([^\]]*)\])`)

// InKernel waits until all switches' kernels process packets.
func (l *Lab) InKernel(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, n := range l.Switches {
		if said := n.Switch.Log(); strings.Contains(said, "there is no fast path") {
			return fmt.Errorf("%w: %s: %s", ErrUnable, n.Name, said)
		}
		for {
			status, _, err := n.Kernel(ctx)
			if err != nil {
				return fmt.Errorf("%w; it is %q", err, status)
			}
			if strings.HasPrefix(status, "xdp") {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// Kernel makes a switch log where packets are processed, and the kernel's counters.
func (n *SwitchNode) Kernel(ctx context.Context) (status string, counts map[string]uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	lines := func() [][]string { return kernelLine.FindAllStringSubmatch(n.Switch.Log(), -1) }
	before := len(lines())
	n.Switch.Signal(unix.SIGUSR1)
	all := lines()
	for ; len(all) <= before; all = lines() {
		select {
		case <-ctx.Done():
			return "", nil, fmt.Errorf("%s does not log its counters: %w", n.Name, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	last := all[len(all)-1]
	counts = map[string]uint64{}
	for _, f := range strings.Fields(last[2] + last[3]) {
		name, value, _ := strings.Cut(f, ":")
		if counts[name], err = strconv.ParseUint(value, 10, 64); err != nil {
			return "", nil, fmt.Errorf("%s: %q: %w", n.Name, last[0], err)
		}
	}
	return last[1], counts, nil
}
