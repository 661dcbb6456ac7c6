package lab

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// FindBMv2 returns bmv2's launcher, if bmv2 is installed.
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

// bmv2Command returns the command of bmv2, and its ready message. bmv2 reads the state of its ports
// from /sys, so it gets one with its own network namespace.
func (l *Lab) bmv2Command(n *SwitchNode) (args []string, ready string) {
	return []string{"unshare", "--mount", "sh", "-c", `mount -t sysfs sysfs /sys && exec "$@" 2>&1`, n.Name, l.programs.BMv2,
		"--notifications-addr", "ipc://" + filepath.Join(l.Dir, n.Name+".ipc")}, "ready: P4Runtime"
}
