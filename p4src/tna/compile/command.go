package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

const dir = "p4src/tna"

// command runs a compiler in the directory of the sources.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(out[max(0, len(out)-4000):]))
	}
	return nil
}
