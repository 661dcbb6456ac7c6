package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// daemonFlags say which daemon a command talks to, and how.
type daemonFlags struct {
	socket  string
	timeout time.Duration
}

func addDaemonFlags(cmd *cobra.Command) *daemonFlags {
	f := &daemonFlags{}
	cli.AddSocketFlag(cmd, &f.socket, "s")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Second, "`time` that the daemon has for each answer")
	return f
}

// dial returns the daemon; it connects when it is first called. The error is one of usage.
func (f *daemonFlags) dial() (*cli.Daemon, error) {
	return cli.DialDaemon(cli.Socket(f.socket), "cmd-daemon", f.timeout)
}
