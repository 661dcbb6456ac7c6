package docs

import (
	"context"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestLabEnds: what README.md starts in the background ends by the command that it names for that,
// in bash and in the system's sh. Some shells have no jobs in $(…).
func TestLabEnds(t *testing.T) {
	text := read(t, "README.md")
	start := regexp.MustCompile(`(?m)^for h in h1 h2 h3; do bin/cmd-daemon run .*done$`).FindString(text)
	end := regexp.MustCompile("`(kill [^`]+)`; run").FindStringSubmatch(text)
	if start == "" || end == nil {
		t.Fatalf("README.md starts %q, and ends it by %q", start, end)
	}
	start = strings.ReplaceAll(start, "bin/cmd-daemon run --config lab/$h/daemon.yaml", "sleep 60")
	for _, name := range []string{"bash", "sh"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, "-c", "mkdir lab\n"+start+"\n"+end[1]+" || exit 1\nwait\n") //nolint:gosec // from README.md
		cmd.Dir, cmd.WaitDelay = t.TempDir(), time.Second
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v, %s\n%s\n%s", name, err, out, start, end[1])
		}
	}
}
