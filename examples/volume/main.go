// Command volume runs a replicated volume on this machine, without privilege: a rack of an embedded
// switch and three hosts, each with a daemon and an mcblock, which run etcd too. The volume is at
// nbd://127.0.0.1:10809/vol, for qemu-img, nbdcopy or fio; the program shows what becomes of it while
// the user kills hosts.
//
//	make volume
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/mcrdma/mcrdma/internal/cmdline"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command runs the program until ctx ends, and returns its exit code.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stdout)
	if err == nil {
		err = (&demo{settings: s, out: stdout, stderr: stderr}).run(ctx)
	}
	return cmdline.Exit("volume", err, stderr)
}
