package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestRack: examples/rack works: one daemon contains the switch's agent, and the switch copies for
// groups. It builds and runs programs, so it takes a while.
func TestRack(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		testenv.Skip(t, "there is no bash")
	}
	// With an empty cache, compiling takes most of the time; then run finds it done.
	if out, err := exec.Command("go", "build", "-o", t.TempDir(), "../switchctl", ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../../examples/rack/run", "cmd-daemon", "cmtime", "--service", "bench", "--receivers", "h2,h3",
		"--mode", "require", "-n", "3", "--write", "100000", "--json")
	cmd.Env = append(os.Environ(), "RACK_ADDRESS="+testenv.Loopback().String())
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var stderr testenv.SyncBuffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var r timingReport
	if err := json.Unmarshal(out, &r); err != nil || r.Groups != 3 || r.Paths["switch"] != 3 {
		t.Errorf("%v: %s", err, out)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	phases := ""
	for _, s := range r.Phases {
		phases += s.Phase + " "
	}
	if !strings.Contains(phases, "install") || !strings.Contains(phases, "write") {
		t.Errorf("phases %s", phases)
	}
}
