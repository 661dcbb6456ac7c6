package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Main is a command that works in labs: run has a directory of its own, and a context that ends with an interrupt. Where
// there can be no labs, the command says that what it does is left out.
func Main(name, what string, run func(ctx context.Context, dir string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "mcrdma-bench-")
	if err == nil {
		err = errors.Join(run(ctx, dir), os.RemoveAll(dir))
	}
	switch {
	case errors.Is(err, ErrUnable):
		fmt.Println(what, "are left out:", err)
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}
