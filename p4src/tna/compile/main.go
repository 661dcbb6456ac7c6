// Command compile has p4c make what package tna holds, run from the top of the repository:
//
//	go run ./p4src/tna/compile
//
// It needs p4c-bm2-ss, as package bmv2/compile finds it, and p4c-barefoot and bfas in PATH.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/mcrdma/mcrdma/bmv2/compile"
	"github.com/mcrdma/mcrdma/p4src/tna"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "compile:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	p4c, err := compile.Compiler()
	if err != nil {
		return err
	}
	version, err := compile.Version(ctx, p4c)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "mcrdma-tna-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	shim, err := compileShim(ctx, p4c, filepath.Join(tmp, "shim.json"))
	if err != nil {
		return err
	}
	sources, artifact, err := tna.Hash(os.DirFS(dir), shim)
	if err != nil {
		return err
	}
	made := fmt.Sprintf("sources %s\nshim %s\np4c %s\n", sources, artifact, version)
	for _, t := range targets {
		lines, err := t.compile(ctx, filepath.Join(tmp, t.name))
		if err != nil {
			return err
		}
		made += lines
	}
	if err := os.WriteFile(filepath.Join(dir, "shim.json"), shim, 0o644); err != nil {
		return err
	}
	fmt.Print(made)
	return os.WriteFile(filepath.Join(dir, "made.txt"), []byte(made), 0o644)
}

// compileShim compiles shim.p4, and takes out where in the sources each part comes from: most of its size.
func compileShim(ctx context.Context, p4c, to string) ([]byte, error) {
	if err := command(ctx, p4c, "--std", "p4-16", "-o", to, "shim.p4"); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(to)
	if err != nil {
		return nil, err
	}
	var program any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&program); err != nil {
		return nil, fmt.Errorf("the output of %s: %w", p4c, err)
	}
	withoutSources(program)
	shim, err := json.Marshal(program)
	return append(shim, '\n'), err
}

func withoutSources(v any) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			withoutSources(x)
		}
	case map[string]any:
		delete(v, "source_info")
		for _, x := range v {
			withoutSources(x)
		}
	}
}
