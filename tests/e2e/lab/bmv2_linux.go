package lab

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// What bmv2 takes where it shares a few processors with all else: it has queues of 64
// packets for each port, and empties them slowly. This is all that differs in labs with
// it: what tests demand is the same.
const (
	bmv2Rate   = 40_000_000 // bits a second that a host sends at most
	bmv2Burst  = 16 << 10   // bytes of that at once
	bmv2Window = "window=32"
	bmv2Share  = 4 // a test moves 1/4 of the data
)

// Share returns how much a test of large amounts should do of n, bytes or operations:
// all of it, or less where switches are slow.
func (l *Lab) Share(n int) int {
	if l.Spec.BMv2 {
		return n / bmv2Share
	}
	return n
}

// FindBMv2 returns bmv2's launcher, if there is a bmv2 that it would start.
func FindBMv2() (launcher string, err error) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", module+"bmv2").Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	launcher = filepath.Join(strings.TrimSpace(string(dir)), "simple_switch_grpc")
	if out, err := exec.Command(launcher, "--which").CombinedOutput(); err != nil {
		return "", errors.New(strings.TrimSpace(string(out)))
	}
	return launcher, nil
}

// bmv2Command returns what starts bmv2, and what it says when it is ready. bmv2 looks in
// /sys whether its ports are up: it gets one that shows its own network namespace.
func (l *Lab) bmv2Command(n *SwitchNode) (args []string, ready string) {
	return []string{"unshare", "--mount", "sh", "-c", `mount -t sysfs sysfs /sys && exec "$@" 2>&1`, n.Name, l.programs.BMv2,
		"--notifications-addr", "ipc://" + filepath.Join(l.Dir, n.Name+".ipc")}, "ready: P4Runtime"
}
