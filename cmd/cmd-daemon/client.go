package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// daemonFlags say which daemon a command connects to, and how.
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

// dial returns the daemon; it connects at the first call. The error is a usage error.
func (f *daemonFlags) dial() (*cli.Daemon, error) {
	return cli.DialDaemon(cli.Socket(f.socket), "cmd-daemon", f.timeout)
}

// A question is a running command that asks the daemon.
type question struct {
	context.Context
	*cli.Daemon
	out  *cli.Output
	w    io.Writer
	args []string
}

// asking makes a command ask the daemon of its flags, and show the answer.
func asking(cmd *cobra.Command, ask func(question) error) *daemonFlags {
	out, flags := cli.AddOutputFlag(cmd), addDaemonFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := flags.dial()
		if err != nil {
			return err
		}
		defer d.Close()
		return ask(question{cmd.Context(), d, out, cmd.OutOrStdout(), args})
	}
	return flags
}

// show writes an answer as JSON, or by text.
func (q question) show(answer proto.Message, text func() string) error {
	if q.out.IsJSON() {
		return q.out.Message(q.w, answer)
	}
	_, err := io.WriteString(q.w, text())
	return err
}
