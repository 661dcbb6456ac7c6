// Command p4c compiles p4src into bmv2, run from the top of the repository:
//
//	go run ./bmv2/compile/p4c
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/mcrdma/mcrdma/bmv2/compile"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "p4c:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	p4c, err := compile.Compiler()
	if err != nil {
		return err
	}
	r, err := compile.Program(ctx, p4c, "p4src")
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"mcrdma.json": r.JSON, "mcrdma.p4info.txtpb": r.P4Info, "made.txt": []byte(r.Made.String()),
	} {
		if err := os.WriteFile(filepath.Join("bmv2", name), content, 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("bmv2: compiled by p4c %s\n", r.Made.P4C)
	return nil
}
