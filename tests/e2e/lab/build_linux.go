package lab

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Programs are the paths of a lab's programs.
type Programs struct {
	Switchctl, Daemon, Member string
	BMv2                      string // the launcher of bmv2, from FindBMv2; only for labs with bmv2
}

const module = "github.com/mcrdma/mcrdma/"

// Build compiles the programs, and more of this module, such as cmd/mcblock, into dir.
func Build(dir string, more ...string) (Programs, error) {
	return build(context.Background(), "", dir, more...)
}

// build compiles the programs in a source directory.
func build(ctx context.Context, source, dir string, more ...string) (Programs, error) {
	args := []string{"go", "build", "-o", dir + "/"}
	for _, p := range append([]string{"cmd/switchctl", "cmd/cmd-daemon", "tests/e2e/member"}, more...) {
		args = append(args, module+p)
	}
	_, err := command(ctx, source, args...)
	return programsIn(dir), err
}

func programsIn(dir string) Programs {
	return Programs{Switchctl: filepath.Join(dir, "switchctl"), Daemon: filepath.Join(dir, "cmd-daemon"), Member: filepath.Join(dir, "member")}
}

// command runs a program in a directory, and returns its output.
func command(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(args[:2], " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}
