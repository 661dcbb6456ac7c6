package cli

import (
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// TestInterruptible: a program ends in good order by each signal that asks for it, a closed terminal's too; with nohup
// that one is without effect.
func TestInterruptible(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if signal.Ignored(s) {
			t.Logf("%v is ignored here", s)
			continue
		}
		ctx, stop := Interruptible(t.Context())
		if err := syscall.Kill(syscall.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Second):
			t.Errorf("%v does nothing", s)
		}
		stop()
	}
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	ctx, stop := Interruptible(t.Context())
	defer stop()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := ctx.Err(); err != nil || !signal.Ignored(syscall.SIGHUP) {
		t.Errorf("with nohup: %v", err)
	}
}
