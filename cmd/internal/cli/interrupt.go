package cli

import (
	"context"
	"os/signal"
	"syscall"
)

// Interruptible returns a context that ends with ctx, or when the program is interrupted or
// terminated. After stop, a signal ends the program at once.
func Interruptible(ctx context.Context) (_ context.Context, stop context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
}
