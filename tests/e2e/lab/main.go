package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Main is the main function of a command that works in labs: run gets its own directory, and a
// context that ends with an interrupt. Where labs are impossible, the command reports that it skips
// its work.
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
