// Command compile makes bpf/mcrdma.o of the C source in bpf/src, and records its sources' hashes in made.txt.
// It runs clang and llvm-strip; "make bpf" installs them.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/mcrdma/mcrdma/bpf"
)

const (
	sources = "bpf/src"
	dir     = "bpf"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "compile:", err)
		os.Exit(1)
	}
}

func run() error {
	version, err := exec.Command("clang", "--version").Output()
	if err != nil {
		return fmt.Errorf("clang --version: %w", err)
	}
	first, _, _ := strings.Cut(string(version), "\n")
	tmp, err := os.MkdirTemp("", "mcrdma-bpf-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	out := filepath.Join(tmp, "mcrdma.o")
	// The kernel's headers look for the machine's own, which clang does not look for when it compiles for BPF.
	// v3 has atomic operations that return something: kernel 5.12.
	for _, args := range [][]string{
		{"clang", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpfel", "-mcpu=v3", "-I/usr/include/" + triple(), "-c", "mcrdma.c", "-o", out},
		{"llvm-strip", "-g", out}, // the types of maps stay
	} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = sources // the object holds file names as they are given
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", args[0], err, bytes.TrimSpace(text))
		}
	}
	object, err := os.ReadFile(out)
	if err != nil {
		return err
	}
	made, err := bpf.Made(os.DirFS(sources), object, strings.TrimSpace(first))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "mcrdma.o"), object, 0o644); err != nil { //nolint:gosec // not secret
		return err
	}
	return os.WriteFile(filepath.Join(dir, "made.txt"), []byte(made), 0o644) //nolint:gosec // not secret
}

// triple is what gcc calls this machine, as a directory of its headers is called.
func triple() string {
	out, err := exec.Command("clang", "-print-target-triple").Output()
	if err != nil {
		return "x86_64-linux-gnu"
	}
	return strings.Replace(strings.TrimSpace(string(out)), "-pc-", "-", 1)
}
