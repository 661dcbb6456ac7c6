package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Interruptible returns a context that ends with ctx, or when the program is interrupted or
// terminated, or its terminal is closed, unless that is to have no effect (nohup). After stop, a signal
// ends the program at once.
func Interruptible(ctx context.Context) (_ context.Context, stop context.CancelFunc) {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signal.NotifyContext(ctx, signals...)
}
