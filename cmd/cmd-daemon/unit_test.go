package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnit: systemd accepts the units, and their command lines are valid.
func TestUnit(t *testing.T) {
	unit, err := os.ReadFile("../../contrib/systemd/cmd-daemon.service")
	must(t, err)
	conf := filepath.Join(makeLab(t, 1), "h1", "daemon.yaml")
	if !strings.Contains(string(unit), "\nRestart=on-failure\n") {
		t.Error("a daemon that panics is not started again")
	}
	lines := 0
	for line := range strings.Lines(string(unit)) {
		key, command, _ := strings.Cut(strings.TrimSpace(line), "=")
		if !strings.HasPrefix(key, "Exec") {
			continue
		}
		lines++
		args := strings.Fields(strings.ReplaceAll(command, "/etc/mcrdma/daemon.yaml", conf))[1:]
		if code, _, stderr := call(append(args, "--check")...); code != 0 {
			t.Errorf("%s: %d, %s", line, code, stderr)
		}
	}
	if lines != 2 {
		t.Errorf("%d command lines", lines)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("optional: there is no systemd-analyze")
	}
	dir := t.TempDir()
	app, err := os.ReadFile("../../contrib/systemd/application.conf")
	must(t, err)
	for name, text := range map[string]string{
		"cmd-daemon.service": strings.ReplaceAll(string(unit), "/usr/local/bin/cmd-daemon", "/bin/true"),
		"app.service":        string(app) + "ExecStart=/bin/true\n",
	} {
		file := filepath.Join(dir, name)
		must(t, os.WriteFile(file, []byte(text), 0o600))
		cmd := exec.Command(analyze, "verify", "--man=no", file)
		cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
		out, err := cmd.CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, name) { // other packages' units may have any content
				t.Errorf("%v: %s", err, line)
			}
		}
	}
}
