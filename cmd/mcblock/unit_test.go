package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnit: systemd accepts the unit, and its command lines are valid.
func TestUnit(t *testing.T) {
	unit, err := os.ReadFile("../../contrib/systemd/mcblock.service")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, configuration)
	text := "name: h1\nid: 1\naddress: 127.0.0.1\ndata: data\netcd: {endpoints: [\"127.0.0.1:2379\"]}\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(string(unit)) {
		key, command, _ := strings.Cut(strings.TrimSpace(line), "=")
		if !strings.HasPrefix(key, "Exec") {
			continue
		}
		lines++
		args := strings.Fields(strings.ReplaceAll(command, "/etc/mcrdma/mcblock.yaml", conf))[1:]
		if code, _, stderr := call(t, append(args, "--check")...); code != 0 {
			t.Errorf("%s: %d, %s", line, code, stderr)
		}
	}
	if lines != 2 || !strings.Contains(string(unit), "\nRestart=on-failure\n") {
		t.Errorf("%d command lines, or it is not started again", lines)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("optional: there is no systemd-analyze")
	}
	file := filepath.Join(dir, "mcblock.service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(unit), "/usr/local/bin/mcblock", "/bin/true")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file)
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "mcblock.service") { // other packages' units may have any content
			t.Errorf("%v: %s", err, line)
		}
	}
}
