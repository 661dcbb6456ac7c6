// Package compile runs p4c on p4src. It is for "make p4" and for the test that
// compares the committed artifacts with a fresh compilation.
package compile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/made"
)

// ErrNoCompiler means that p4c-bm2-ss is not installed.
var ErrNoCompiler = errors.New("p4c-bm2-ss not found: install p4c, or name the program in the environment variable P4C")

// Result is what the compiler made.
type Result struct {
	JSON, P4Info []byte
	Made         bmv2.Made
}

// Compiler finds p4c-bm2-ss: named by the environment variable P4C, in PATH, or
// in /usr/local/bin.
func Compiler() (string, error) {
	if p := os.Getenv("P4C"); p != "" {
		return exec.LookPath(p)
	}
	for _, p := range []string{"p4c-bm2-ss", "/usr/local/bin/p4c-bm2-ss"} {
		if found, err := exec.LookPath(p); err == nil {
			return found, nil
		}
	}
	return "", ErrNoCompiler
}

// Version asks the compiler for its version.
func Version(ctx context.Context, p4c string) (string, error) {
	out, err := exec.CommandContext(ctx, p4c, "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", p4c, err)
	}
	// The last line reads "Version 1.2.5.16 (SHA: … BUILD: Release)".
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	fields := strings.Fields(lines[len(lines)-1])
	if len(fields) < 2 {
		return "", fmt.Errorf("%s --version: cannot read %q", p4c, out)
	}
	return fields[1], nil
}

// Program compiles dir/mcrdma.p4.
func Program(ctx context.Context, p4c, dir string) (*Result, error) {
	version, err := Version(ctx, p4c)
	if err != nil {
		return nil, err
	}
	sources, err := made.HashSources(os.DirFS(dir), "*.p4")
	if err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "mcrdma-p4c-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	json, info := filepath.Join(tmp, "mcrdma.json"), filepath.Join(tmp, "mcrdma.p4info.txtpb")
	cmd := exec.CommandContext(ctx, p4c, "--std", "p4-16", "--p4runtime-files", info, "-o", json, "mcrdma.p4")
	cmd.Dir = dir // the JSON holds file names as they are given
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", p4c, err, bytes.TrimSpace(out))
	}
	r := &Result{Made: bmv2.Made{Sources: sources, P4C: version}}
	if r.JSON, err = os.ReadFile(json); err != nil {
		return nil, err
	}
	if r.P4Info, err = os.ReadFile(info); err != nil {
		return nil, err
	}
	r.Made.Artifacts = bmv2.HashArtifacts(r.JSON, r.P4Info)
	return r, nil
}
