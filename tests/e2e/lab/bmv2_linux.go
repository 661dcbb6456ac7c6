package lab

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

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
